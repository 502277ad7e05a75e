"""What becomes of a run when a node, an engine or the command ends in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest

from harness.records.parquet import read_records
from harness.runs.events import CellProgress, Event
from harness.runs.run_state import Run
from harness.schema.online_settings import OnlineSettings
from tests.harness.cluster.conftest import SHORT_RUN
from tests.harness.measured import resume_online, run_online

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

N = 60
GIVEN = SHORT_RUN | {"cluster": "auto", "n": N, "repeats": 2, "clients": 2}


def workers() -> list[psutil.Process]:
    """The processes of nodes: of the engine's first, then of those that send."""
    ours = psutil.Process().children(recursive=True)  # the nodes are ours
    found = [process for process in ours if process.name().startswith("ray::_Actor")]
    return sorted(found, key=lambda process: process.create_time())


def started() -> list[psutil.Process]:
    """The processes of nodes, and the clients, guards and engines below them."""
    return [process for node in workers() for process in (node, *node.children(recursive=True))]


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them is there any more."""
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def tables(folder: Path) -> pd.DataFrame:
    return read_records(folder).requests


class KillOnce:
    """Kills a node's process when the first cell is going on. `seen` is what ran by then."""

    def __init__(self, position: int) -> None:
        self._position = position
        self.seen: list[psutil.Process] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, CellProgress) and event.progress.completed > 5 and not self.seen:
            self.seen = started()
            workers()[self._position].kill()


@pytest.mark.parametrize("position", [0, 1], ids=["the engine's", "one that sends"])
def test_the_process_of_a_node_is_killed_in_a_cell(position: int, tmp_path: Path) -> None:
    kill = KillOnce(position)
    folder, results = run_online(OnlineSettings.model_validate(GIVEN | {"out": tmp_path}), ["bench"], kill)
    assert len(kill.seen) > 4
    [fault] = results.skipped
    assert fault.repeat == 0 and "node" in fault.reason and "lost" in fault.reason
    assert {*tables(folder)["repeat"]} == {1} and len(tables(folder)) == N
    wait_until(lambda: gone(kill.seen))
    folder, results = resume_online(folder)
    assert not results.skipped
    assert not tables(folder).duplicated(["cell", "request"]).any() and len(tables(folder)) == 2 * N


def test_a_run_that_is_killed_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    settings = {key.replace("_", "-"): value for key, value in GIVEN.items()}
    flags = {"calibrate": "--no-calibrate", "check-answers": "--no-check-answers"}
    options = [w for k, v in settings.items() if k not in flags for w in (f"--{k}", str(v))] + [
        *flags.values()
    ]
    command = [sys.executable, "-m", "harness.cli.app", "online", *options, "--out", str(tmp_path), "--quiet"]
    run = subprocess.Popen(command, start_new_session=True)
    wait_until(lambda: any(tmp_path.glob("*/journal.jsonl")), 120)
    wait_until(lambda: len(started()) > 4)  # the second server
    seen = started()
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    wait_until(lambda: gone(seen), 90)
    [folder] = tmp_path.iterdir()
    [line] = (folder / "journal.jsonl").read_text().splitlines()
    before = pd.read_parquet(next((folder / "raw").glob("*.requests.parquet")))
    resume_online(folder)
    after = tables(folder)
    assert len(after) == 2 * N and not after.duplicated(["cell", "request"]).any()
    kept = after[after["cell"] == json.loads(line)["cell"]]
    assert kept["t_sent"].tolist() == before.sort_values("request")["t_sent"].tolist()


def test_an_engine_that_never_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(
        json.dumps(
            {"model_type": "gpt2", "vocab_size": 8, "n_positions": 256, "architectures": ["GPT2LMHeadModel"]}
        )
    )
    given = GIVEN | {"out": tmp_path / "runs", "model": str(broken), "repeats": 1}
    with pytest.raises(Exception, match=r"node .*ended") as caught:
        run_online(OnlineSettings.model_validate(given))
    assert "nothing could be measured" in str(caught.value)
    [folder] = (tmp_path / "runs").iterdir()
    assert Run.open(folder).skipped and (folder / "logs" / "roseinfer.server.log").stat().st_size
    wait_until(lambda: not workers())
