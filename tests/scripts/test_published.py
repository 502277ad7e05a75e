"""Which GPUs and CPUs the runs of `scripts/published.py` get, and which of them are profiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from scripts import published
from scripts.published import CONFIGS, Commands, Gpus, Run
from tests.harness.cluster.conftest import ROOT


def run_of(name: str, sides: int) -> Run:
    return Run.of(name, yaml.safe_load((ROOT / CONFIGS / f"{name}.yaml").read_text()), sides)


def test_an_online_run_measures_at_least_its_repeats_on_gpus_of_its_own() -> None:
    alone, parallel = run_of("one-gpu-qwen3-8b", 2), run_of("two-gpus-qwen3-8b", 3)
    assert (alone.sides, alone.gpus, alone.repeats) == (2, 1, 4)
    assert (parallel.sides, parallel.gpus, parallel.repeats) == (3, 2, 3)
    command = parallel.command(Path("out"), ["--no-accuracy"])
    assert command[command.index("--gpus-per-engine") + 1] == "2"
    assert command[command.index("--side-by-side") + 1] == "3"
    assert "--no-accuracy" in command


@pytest.mark.parametrize("name", ["one-gpu-gpt2-offline", "one-gpu-qwen3-0.6b-offline"])
def test_an_offline_run_has_one_gpu(name: str) -> None:
    run = run_of(name, 3)
    assert run.offline and run.sides == run.gpus == 1
    assert run.command(Path("out"), [])[3] == "offline"


def test_no_gpu_and_no_core_is_given_twice() -> None:
    gpus, held, lock = Gpus(list("abcde")), [], threading.Lock()
    most = 0

    def take(count: int) -> None:
        nonlocal most
        taken = gpus.take(count)
        with lock:
            assert not set(taken) & set(held)
            held.extend(taken)
            most = max(most, len(held))
        with lock:
            for name in taken:
                held.remove(name)
        gpus.give(taken)

    with ThreadPoolExecutor(35) as threads:
        list(threads.map(take, [1, 2, 3, 5, 2, 1, 4] * 5))
    assert 0 < most <= 5 and not held
    assert gpus.take(5) == list("abcde")


def test_a_run_has_the_cores_of_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "physical_cores", lambda: [(core, core + 8) for core in range(8)])
    gpus = Gpus(["4", "5", "6", "7"])
    assert gpus.cpus(["4"]) == "0,8,1,9"
    assert gpus.cpus(["5", "7"]) == "2,10,3,11,6,14,7,15"


#: Says what it is called with, fails where FAILS names its command, and ends like a run.
BENCH = """
import os, sys
print(*sys.argv[1:], "on", os.environ["CUDA_VISIBLE_DEVICES"])
print("runs/online_1/report.html")
sys.exit(sys.argv[1] == os.environ.get("FAILS"))
"""


@pytest.mark.integration
@pytest.mark.parametrize("fails", ["nothing", "online", "profile"])
def test_a_measured_run_is_profiled_on_the_gpus_of_one_engine(fails, tmp_path, monkeypatch, capsys):
    bench = (sys.executable, "-c", BENCH)
    monkeypatch.setenv("FAILS", fails)
    monkeypatch.setattr(Run, "command", lambda *_: [*bench, "online"])
    monkeypatch.setattr(published, "physical_cores", lambda: [(min(os.sched_getaffinity(0)),)] * 4)
    gpus = Gpus(list("abcd"))
    run = Run("a-run", sides=2, gpus=2, repeats=2, offline=False, profiled=True, bench=bench)
    is_measured = published.measured(run, tmp_path, [], gpus, gpus.take(4))
    assert is_measured == (fails != "online")
    assert gpus.take(4) == list("abcd"), "all are free again"
    assert (tmp_path / "a-run.log").read_text().startswith("online on a,b,c,d\n")
    profile = tmp_path / "a-run.profile.log"
    assert profile.exists() == is_measured
    if is_measured:
        assert profile.read_text().startswith("profile run runs/online_1 --tool both on a,b\n")
    assert ("its profile failed" in capsys.readouterr().out) == (fails == "profile")


#: Ends as an interrupted run does.
INTERRUPTED = """
import sys, time
try:
    print("runs", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("report")
    sys.exit(130)
"""


@pytest.mark.integration
def test_what_runs_is_interrupted_and_nothing_else_is_started() -> None:
    commands, command, (read, write) = Commands(), [sys.executable, "-c", INTERRUPTED], os.pipe()
    with ThreadPoolExecutor(1) as threads, os.fdopen(read) as lines:
        with os.fdopen(write, "wb") as output:
            status = threads.submit(commands.status, command, os.environ, output)
            assert lines.readline() == "runs\n"
            commands.interrupt()
            assert status.result(30) == 130
            assert commands.status(command, os.environ, output) == 130
        assert lines.read() == "report\n"


#: The script with GPUs that are not there and a run that says "runs" and, once it is interrupted, "report".
SCRIPT = f"""
import sys
from scripts import published
published.gpu.names = lambda environment: ["0", "1"]
published.Run.command = lambda *_: [sys.executable, "-c", {INTERRUPTED!r}]
published.main()
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_runs(number: signal.Signals, tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--sides", "2", "one-gpu-qwen3-8b"]
    log = tmp_path / "one-gpu-qwen3-8b.log"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, *words], cwd=ROOT, stdout=subprocess.PIPE) as script:
        while not (log.exists() and log.read_text()):
            with pytest.raises(subprocess.TimeoutExpired):
                script.wait(0.05)
        script.send_signal(number)
        script.communicate(timeout=30)
    assert script.returncode == 130 and log.read_text() == "runs\nreport\n"


def test_repeats_are_not_given_twice(monkeypatch, capsys):
    words = ["published", "--out", "out", "--sides", "2", "one-gpu-qwen3-8b", "--", "--repeats", "10"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        published.main()
    assert "--repeats cannot be given with --sides" in capsys.readouterr().err
