"""`bench engines`: what it says about engines that are there, missing or misspelt."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from harness.cli.engines import app
from harness.errors import UsageError

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _no_peers(tmp_path, monkeypatch) -> None:
    """Only the engines of this environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BENCH_ENGINES", raising=False)
    monkeypatch.delenv("BENCH_PEERS", raising=False)


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_list_names_every_engine_and_its_variants():
    listed = _run("list")
    assert all(name in listed for name in ("roseinfer", "vllm", "transformers", "openai", "prefix-cache"))


def test_show_prints_the_command():
    options = ["--device", "cpu", "--dtype", "bf16", "--max-model-len", "512"]
    shown = _run("show", "roseinfer", "--model", "/models/gpt2", *options)
    assert "-m roseinfer.cli serve --model /models/gpt2" in shown
    assert "--dtype bf16" in shown
    assert "--max-model-len 512" in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlllm", "did you mean vllm"),
        ("a b", "not an engine"),
        ("vllm@nosuch", "no variant"),
        ("openai", "not started by bench"),
    ],
)
def test_show_of_what_is_not_there(name, message):
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, ["show", name], catch_exceptions=False)


def test_doctor_says_what_runs():
    assert "roseinfer: rosebench" in _run("doctor")
