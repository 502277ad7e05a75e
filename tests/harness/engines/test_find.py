"""The interpreter of an engine: configuration, then BENCH_PEERS, then the cache, then our own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.engines import find
from harness.engines.base import Installation, Missing
from harness.engines.local import LocalEngine
from harness.engines.registry import LOCAL
from harness.engines.variants import load_variants
from harness.errors import UsageError

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("BENCH_ENGINES", raising=False)
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))


def _environment(folder: Path, name: str) -> Path:
    """A folder that looks like a virtual environment and runs our own Python."""
    python = folder / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is set for an engine holds wherever it lives."""
    users = tmp_path / "config" / "rosebench" / "engines.yaml"
    users.parent.mkdir(parents=True)
    users.write_text("vllm: {env: {VLLM_LOGGING_LEVEL: DEBUG}}")
    env = {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert find.place("vllm") == find.Place(Path(sys.executable), "this environment", env)
    cached = _environment(tmp_path / "cache" / "engines", "vllm")
    assert (find.place("vllm").python, find.place("vllm").env) == (cached, env)
    peers = _environment(tmp_path / "peers", "vllm")
    monkeypatch.setenv("BENCH_PEERS", str(tmp_path / "peers"))
    assert (find.place("vllm").python, find.place("vllm").env) == (peers, env)
    assert find.place("transformers").python == Path(sys.executable)
    named = _environment(tmp_path / "named", "v")
    users.write_text(f"vllm: {{python: {named}, env: {{PYTHONPATH: /engines/vllm}}}}")
    assert find.place("vllm").python == named
    assert find.place("vllm").env == {"PYTHONPATH": "/engines/vllm"}


def engine(*distributions: str, needs: tuple[str, ...] = ()) -> LocalEngine:
    """vLLM as another package, with other requirements."""
    changes = {"distributions": distributions, "needs": needs, "install": "do this"}
    return type("Other", (type(LOCAL["vllm"]),), changes)()


def test_versions_are_asked_of_that_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = _environment(tmp_path / "peers", "vllm")
    monkeypatch.setenv("BENCH_PEERS", str(tmp_path / "peers"))
    there = engine("no-such-distribution", "rosebench").find()
    assert isinstance(there, Installation)
    assert (there.python, there.distribution, there.how) == (python, "rosebench", "$BENCH_PEERS/vllm")
    assert there.versions["python"] == sys.version.split()[0] and there.versions["torch"]


def test_missing_names_the_package_and_how_to_install_it():
    for absent in (
        engine("no-such-distribution").find(),
        engine("rosebench", needs=("pydantic", "no-such-distribution")).find(),
    ):
        assert isinstance(absent, Missing)
        assert absent.reason.endswith("has no no-such-distribution") and absent.hint == "do this"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm: {python: /no/such/python}", "cannot be run"),
        ("vlm: {python: /bin/sh}", "vlm"),
        ("vllm: {pyhton: /bin/sh}", "vllm"),
        ("vllm: {", "not YAML"),
        ("vllm: {}\nvllm: {}", "line 2: vllm is given twice"),
        ("\xff", "not YAML"),
        ("vllm: {variants: {no-async-scheduling: {}}}", "which comes with the engine too"),
        ("vllm: {variants: {mine: {argz: [x]}}}", r"vllm\.variants\.mine: there is no key 'argz'"),
        ("folder", "cannot be read: Is a directory"),
        ("nothing", "BENCH_ENGINES names .* which does not exist"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str):
    path = tmp_path if text == "folder" else tmp_path / "engines.yaml"
    if text not in ("folder", "nothing"):
        path.write_text(text, encoding="latin-1")
    monkeypatch.setenv("BENCH_ENGINES", str(path))
    with pytest.raises(UsageError, match=message):
        find.place("vllm")
        load_variants(LOCAL["vllm"])


def test_an_interpreter_that_does_not_run(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^/bin/false \(here\) does not run: exit code 1\n"):
        find.probe(find.Place(Path("/bin/false"), "here"), [])
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2; echo the reason >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match=r"does not run: the reason \(exit code 3\)\n"):
        find.probe(find.Place(python, "here"), [])
