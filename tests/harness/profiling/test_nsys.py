"""Finding and starting nsys, and reading its output; a script stands in for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from harness.engines.base import Launch
from harness.errors import EngineError, UsageError
from harness.profiling import stage
from harness.profiling.stage import NsysSession

LAUNCH = Launch(("python", "-m", "roseinfer.cli", "serve"), "gpt2", {"A": "1"})


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """The script fails when its first argument is in the file `fails`."""
    program = tmp_path / "target-linux-x64" / "nsys"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\necho "$@" >> calls\n'
        'if [ "$1" = "$(cat fails 2>/dev/null)" ]; then echo "no such session" >&2; exit 3; fi\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.integration
def test_found_on_path_then_in_folders(stand_in, tmp_path, monkeypatch):
    find_nsys = partial(stage.find_nsys, libraries=("libc.so.6",))
    monkeypatch.setenv("PATH", "/bin:/usr/bin:" + str(stand_in.parent))
    assert find_nsys(places=()) == stand_in
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    assert find_nsys(places=(f"{tmp_path}/target-linux-*/nsys",)) == stand_in
    assert find_nsys(stand_in, places=()) == stand_in
    with pytest.raises(UsageError, match="not on PATH") as absent:
        find_nsys(places=())
    assert "--nsys" in absent.value.hint
    with pytest.raises(UsageError, match="is no nsys"):
        find_nsys(tmp_path / "nowhere")


def test_a_missing_library_is_named(stand_in: Path) -> None:
    with pytest.raises(UsageError, match=r"libnowhere\.so\.1 missing") as missing:
        stage.find_nsys(stand_in, libraries=("libc.so.6", "libnowhere.so.1"))
    assert "LD_LIBRARY_PATH" in missing.value.hint


@pytest.mark.integration
def test_a_session_records_between_start_and_stop(stand_in: Path, tmp_path: Path) -> None:
    session = NsysSession(stand_in, tmp_path / "nsys")
    around = session.around(LAUNCH)
    assert around.argv[:2] == (str(stand_in), "launch")
    assert around.argv[-4:] == LAUNCH.argv
    assert f"--session-new={session.name}" in around.argv
    assert (around.served_name, around.env) == (LAUNCH.served_name, LAUNCH.env)
    session.start()
    session.stop()
    with pytest.raises(EngineError, match=r"wrote no nsys\.nsys-rep"):
        session.export()
    (tmp_path / "nsys.nsys-rep").touch()
    session.export()
    calls = (stand_in.parent / "calls").read_text().splitlines()
    assert [line.split()[0] for line in calls] == ["start", "stop", "export", "stats"]
    assert all(f"--session={session.name}" in line for line in calls[:2])
    assert "-s none --cpuctxsw=none" in calls[0]


@pytest.mark.integration
def test_what_nsys_says_is_passed_on(stand_in: Path, tmp_path: Path) -> None:
    (stand_in.parent / "fails").write_text("stop")
    with pytest.raises(EngineError, match="nsys stop failed: no such session"):
        NsysSession(stand_in, tmp_path / "nsys").stop()
