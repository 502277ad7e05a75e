"""Files of others start nothing and send nothing that they alone ask for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness import paths
from harness.cli.trust import check_run, check_trust
from harness.errors import UsageError
from harness.profiling.subject import begin_run
from harness.schema.loader import build
from harness.schema.online_settings import OnlineSettings

#: Commands that are given a file, by what the file is.
COMMANDS = {
    "profile": ("profile", "{run}"),
    "resume": ("online", "--resume", "{run}"),
    "resume a batch": ("offline", "--resume", "{run}"),
    "config": ("online", "--config", "{file}"),
    "tune": ("tune", "roseinfer", "--concurrency", "1", "--config", "{file}"),
}
SECRET = "k-" + 20 * "s3cret"
Command = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.fixture
def listener(integration: None) -> Iterator[tuple[str, list[str]]]:
    """An address, and the paths that were asked for there."""
    paths_asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths_asked.append(self.path)
            self.send_error(404)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", paths_asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def command_for(tmp_path: Path) -> Command:
    """Makes the command of a kind whose file has these settings."""

    def make(kind: str, **settings: Any) -> list[str]:
        file = tmp_path / "file.yaml"
        file.write_text(json.dumps(settings))
        usual = {"model": "random:gpt2-tiny", "device": "cpu", "out": str(tmp_path / "runs"), "n": 1}
        words = COMMANDS[kind]
        run = ""
        if "{run}" in words:
            run = str(begin_run(OnlineSettings.model_validate(usual | settings), ["bench"]))
        return [word.format(file=file, run=run) for word in words]

    return make


@pytest.mark.parametrize("kind", [kind for kind in COMMANDS if kind != "tune"])
def test_code_of_a_file_is_not_run(kind: str, command_for: Command, bench: Any, tmp_path: Path) -> None:
    """Not even where it is trusted, if a variable of loaders brings it."""
    ran = tmp_path / "ran"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(ran)!r}, 'w')")
    engine = {"name": "roseinfer", "variant": "fast", "env": {"PYTHONPATH": str(tmp_path)}}
    command = command_for(kind, engines=[engine])
    for trust in ([], ["--trust"]):
        done = bench(*command, *trust)
        assert done.code == 2 and "PYTHONPATH of roseinfer@fast" in done.err and "engines.yaml" in done.err
    del engine["env"]
    done = bench(*command_for(kind, engines=[engine | {"args": ["--plugin", "evil"]}]))
    assert done.code == 2 and "roseinfer@fast: --plugin evil" in done.err and "--trust" in done.err
    assert not ran.exists()


@pytest.mark.parametrize("extra", [{"api_key_env": "MY_KEY"}, {"header": {"x": "env:MY_KEY"}}, {}])
@pytest.mark.parametrize("kind", COMMANDS)
def test_nothing_is_sent_where_a_file_alone_says(kind, extra, command_for, bench, listener, monkeypatch):
    monkeypatch.setenv("MY_KEY", SECRET)
    url, asked = listener
    command = command_for(kind, **extra, **({"share": url} if kind == "tune" else {"base_url": url}))
    if kind == "tune" and extra:
        return
    done = bench(*command)
    assert done.code == 2 and asked == []
    if kind != "tune":
        assert url in done.err and "--trust" in done.err and ("MY_KEY" in done.err) == bool(extra)
    assert SECRET not in done.out + done.err


def test_a_space_of_others_starts_nothing(bench: Any, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    words = ["tune", "roseinfer", "--concurrency", "1", "--space", str(space), "--device", "cpu"]
    for values, answer in (
        ({"args": {"--block-size": [8, 32]}}, "--trust"),
        ({"env": {"LD_PRELOAD": ["evil.so"]}}, "engines.yaml"),
    ):
        space.write_text(json.dumps({"engine": "roseinfer", **values}))
        done = bench(*words, "--model", "random:gpt2-tiny", "--n", "100")
        assert done.code == 2 and answer in done.err


def settings_of(file: Path, **options: Any) -> OnlineSettings:
    return build(OnlineSettings, file, options)


def test_a_file_is_trusted_until_it_changes(tmp_path: Path) -> None:
    file, moved = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text("base_url: http://h\napi_key_env: KEY\n")
    settings = settings_of(file)
    with pytest.raises(UsageError, match=r"base_url: http://h\n  api_key_env: KEY"):
        check_trust(file, settings, False)
    check_trust(file, settings, True)
    check_trust(file, settings.model_copy(update={"n": 3}), False)
    for source, changes in ((file, {"base_url": "http://i"}), (moved, {})):
        with pytest.raises(UsageError):
            check_trust(source, settings.model_copy(update=changes), False)


def test_what_the_command_line_says_again_is_the_users(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("base_url: http://h\napi_key_env: KEY\n")
    check_trust(file, settings_of(file), False, {"n"})
    with pytest.raises(UsageError, match="api_key_env") as raised:
        check_trust(file, settings_of(file), False, {"api_key_env"})
    assert "base_url" not in raised.value.message


@pytest.mark.parametrize("folder", [paths.DATA / "configs" / "published", None])
def test_files_of_the_project_and_of_the_user_may_ask(folder: Path | None, tmp_path: Path) -> None:
    file = (folder or tmp_path / "settings" / "rosebench") / "x.yaml"
    check_trust(file, OnlineSettings(base_url="http://h"), False)


def test_a_run_that_the_user_began_is_gone_on_with(bench, listener, command_for, tmp_path):
    url, asked = listener
    quick = ["--no-calibrate", "--max-model-len", "64", "--fit", "clip", "--n", "1", "--no-figures"]
    bench("online", "--base-url", url, *quick, "--out", str(tmp_path / "runs"))
    [run] = (tmp_path / "runs").iterdir()
    check_run(run, False)
    asked.clear()
    done = bench("online", "--resume", str(run))
    assert asked and "--trust" not in done.err
    asked.clear()
    copied = run.rename(tmp_path / "of-others")
    assert bench("online", "--resume", str(copied)).code == 2 and not asked
    bench("online", "--resume", str(copied), "--trust")
    assert asked
