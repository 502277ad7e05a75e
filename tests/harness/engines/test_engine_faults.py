"""Whatever happens to engines of a run, the next one is measured and nothing of them is left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Installation
from harness.engines.registry import LOCAL
from harness.engines.server_pages import Route
from harness.errors import BenchError
from harness.runs.events import CellProgress, Event
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.setting_types import EngineName
from harness.telemetry import cell_monitor, gpu
from harness.telemetry.gpu import GpuReader, GpuReading
from tests.harness.measured import run_online


def below() -> set[psutil.Process]:
    """The processes below this one that have not ended."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if child.status() != psutil.STATUS_ZOMBIE}


@dataclass
class Killer:
    """Kills a process below this one when the first requests of an engine are sent: by label, a Python module
    that the process was started with. Knows every process of the run."""

    modules: Mapping[str, str] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    seen: set[psutil.Process] = field(default_factory=set)
    others: set[psutil.Process] = field(default_factory=below)  # servers of other tests

    def __call__(self, event: Event) -> None:
        processes = below() - self.others
        self.seen.update(processes)
        if isinstance(event, CellProgress) and (label := event.cell.engine_variant.label) not in self.killed:
            self.killed.add(label)
            if module := self.modules.get(label):
                started = [process for process in processes if module in process.cmdline()]
                min(started, key=lambda process: process.create_time()).kill()  # not what it just forked

    def left(self, but: int) -> list[psutil.Process]:
        """Processes of the run that live, without that of the PID `but`."""
        seen = [process for process in self.seen if process.pid != but]
        return psutil.wait_procs(seen, timeout=60)[1]


def _run(tmp_path: Path, engines: str, url: str, notify: Any, **changes: Any) -> OnlineResults:
    settings = OnlineSettings(
        engines=engines, base_url=url, model="random:gpt2-tiny", device="cpu", dtype="fp32", out=tmp_path,
        max_model_len=64, concurrency=2, n=4, input_len=8, output_len=4, warmup=0, calibrate=False,
        check_answers=False, **changes,
    )  # fmt: skip
    return run_online(settings, ["bench"], notify)[1]


def _succeeded(results: OnlineResults) -> dict[str, int]:
    """Requests that succeeded, by label."""
    return {summary.label: summary.num_success for summary in results.summaries if summary.repeat is None}


def test_processes_of_engines_are_killed(tmp_path: Path, start_mock: Any):
    """The process that answers HTTP of the first engine, the process that computes of the second."""
    server = start_mock()
    killer = Killer({"roseinfer": "roseinfer.cli", "roseinfer (one thread)": "roseinfer.engine.process"})
    results = _run(tmp_path, "roseinfer,roseinfer@one-thread,openai", server.url, killer)
    assert len(killer.killed) == 3
    succeeded = _succeeded(results)
    assert succeeded.pop("openai") == 4
    left_out = {fault.label for fault in results.skipped}
    for label in killer.modules:
        assert label in left_out or succeeded[label] == 0
    assert killer.left(but=server.process.pid) == []


def test_engines_that_do_not_serve(tmp_path, start_mock, fake, monkeypatch):
    """One never gets ready; one answers nothing but its health and ignores SIGINT. Both leave daemons."""
    (tmp_path / "second").mkdir()
    fakes = {"vllm": fake, "sglang": type(fake)(tmp_path / "second")}
    modes: dict[EngineName, str] = {"vllm": "deaf", "sglang": "stubborn"}
    for name, mode in modes.items():
        there = Installation(name, "1", name, Path("/v/bin/python"), "here")
        launch = fakes[name].launch(mode, timeout_s=1.0 if mode == "deaf" else 60.0)
        monkeypatch.setattr(type(LOCAL[name]), "find", lambda self, there=there: there)
        monkeypatch.setattr(
            type(LOCAL[name]), "command", lambda self, found, settings, port, launch=launch: launch(port)
        )

    class OneGpu(GpuReader):
        """Has a GPU where it may have one."""

        def __init__(self, most: int | None = None) -> None:
            self._count = len(range(1)[:most])

        def close(self) -> None:
            """Nothing is open."""

        def read(self) -> tuple[GpuReading, ...]:
            return (GpuReading(None, None, None, None),) * self._count

        def busy(self) -> tuple[float | None, ...]:
            return (0.9,) * self._count

    for module in (gpu, cell_monitor):
        monkeypatch.setattr(module, "GpuReader", OneGpu)
    results = _run(tmp_path, "vllm,sglang,openai", start_mock().url, Killer())
    assert _succeeded(results) == {"SGLang": 0, "openai": 4}
    seen = [(load.gpus_busy_before, len(load.gpus)) for load in results.machines.values()]
    assert sorted(seen) == [([], 0), ([0.9], 1)], "those of a server that ran already; none on a CPU"
    [fault] = results.skipped
    assert (fault.label, fault.reason) == ("vLLM", "vLLM was not ready after 1 s: loading, for ever")
    assert len(fakes["sglang"].pids) == 3
    assert [fake.left() for fake in fakes.values()] == [[], []]


def test_a_prefix_cache_that_cannot_be_emptied(tmp_path, start_mock, monkeypatch):
    """A cell is not measured where the prefix cache could not be emptied before it."""
    monkeypatch.setattr(OpenAI, "flush", Route("/no_such_route"))
    url, fault = start_mock().url, "nothing could be measured: openai: POST /no_such_route answered 400"
    with pytest.raises(BenchError, match=fault):
        _run(tmp_path, "openai", url, lambda event: None, prefix_cache=True)
    assert _succeeded(_run(tmp_path, "openai", url, lambda event: None)) == {"openai": 4}
