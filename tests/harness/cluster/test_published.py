"""Which GPUs and CPUs the runs of `scripts/published.py` get."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from scripts import published
from scripts.published import CONFIGS, Gpus, Run
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
