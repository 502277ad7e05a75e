"""The interpreter of an engine: configuration, then BENCH_PEERS, then the cache, then our own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.engines import find
from harness.engines.base import Installation, Missing
from harness.errors import UsageError

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("BENCH_ENGINES", raising=False)
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    monkeypatch.setattr(find, "CACHE", tmp_path / "cache")


def _environment(folder: Path, name: str) -> Path:
    """A folder that looks like a virtual environment and runs our own Python."""
    python = folder / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert find.place("vllm").python == Path(sys.executable)
    cached = _environment(tmp_path / "cache", "vllm")
    assert find.place("vllm").python == cached
    peers = _environment(tmp_path / "peers", "vllm")
    monkeypatch.setenv("BENCH_PEERS", str(tmp_path / "peers"))
    assert find.place("vllm").python == peers
    assert find.place("transformers").python == Path(sys.executable)
    named = _environment(tmp_path / "named", "v")
    users = tmp_path / "config" / "rosebench" / "engines.yaml"
    users.parent.mkdir(parents=True)
    users.write_text(f"vllm: {{python: {named}, env: {{PYTHONPATH: /engines/vllm}}}}")
    assert find.place("vllm").python == named
    assert find.place("vllm").env == {"PYTHONPATH": "/engines/vllm"}


def test_what_is_set_for_an_engine_holds_wherever_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    users = tmp_path / "config" / "rosebench" / "engines.yaml"
    users.parent.mkdir(parents=True)
    users.write_text("vllm: {env: {VLLM_LOGGING_LEVEL: DEBUG}}")
    assert find.place("vllm") == find.Place(
        Path(sys.executable), "this environment", {"VLLM_LOGGING_LEVEL": "DEBUG"}
    )
    peers = _environment(tmp_path / "peers", "vllm")
    monkeypatch.setenv("BENCH_PEERS", str(tmp_path / "peers"))
    assert find.place("vllm").python == peers
    assert find.place("vllm").env == {"VLLM_LOGGING_LEVEL": "DEBUG"}


def test_versions_are_asked_of_that_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = _environment(tmp_path / "peers", "roseinfer")
    monkeypatch.setenv("BENCH_PEERS", str(tmp_path / "peers"))
    found = find.find("roseinfer", ("no-such-distribution", "rosebench"), "")
    assert isinstance(found, Installation)
    assert (found.python, found.distribution, found.how) == (python, "rosebench", "$BENCH_PEERS/roseinfer")
    assert found.versions["python"] == sys.version.split()[0]
    assert found.versions["torch"]


def test_missing_says_how_to_install_it():
    found = find.find("vllm", ("no-such-distribution",), "do this")
    assert isinstance(found, Missing)
    assert "no-such-distribution" in found.reason
    assert found.hint == "do this"


def test_a_package_that_it_needs_is_missing():
    found = find.find("transformers", ("rosebench",), "do this", ("pydantic", "no-such-distribution"))
    assert isinstance(found, Missing)
    assert found.reason.endswith("has no no-such-distribution")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm: {python: /no/such/python}", "cannot be run"),
        ("vlm: {python: /bin/sh}", "vlm"),
        ("vllm: {pyhton: /bin/sh}", "vllm"),
        ("vllm: {", "not YAML"),
        ("vllm: {}\nvllm: {}", "gives vllm twice, in lines 1 and 2"),
        ("\xff", "not YAML"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str):
    path = tmp_path / "engines.yaml"
    path.write_text(text, encoding="latin-1")
    monkeypatch.setenv("BENCH_ENGINES", str(path))
    with pytest.raises(UsageError, match=message):
        find.place("vllm")


def test_a_folder_is_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BENCH_ENGINES", str(tmp_path))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        find.place("vllm")


def test_a_named_configuration_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BENCH_ENGINES", str(tmp_path / "nothing.yaml"))
    with pytest.raises(UsageError, match="BENCH_ENGINES"):
        find.place("vllm")


def test_an_interpreter_that_does_not_run(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^/bin/false \(here\) does not run: exit code 1\n"):
        find.probe(find.Place(Path("/bin/false"), "here"), [])
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2; echo the reason >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match=r"does not run: the reason \(exit code 3\)\n"):
        find.probe(find.Place(python, "here"), [])
