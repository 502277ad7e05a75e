"""Engine and clients on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from pydantic import JsonValue

from harness.calibration.calibrate import calibrate
from harness.calibration.calibrate import load as load_calibration
from harness.cluster.testbed import Machines, Reading, ReportStatus, SentLoad, Testbed, Watch
from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.placement import CpuSplit, physical_cores, split
from harness.engines.selection import Selection, select_engines
from harness.errors import BenchError, BusyMachineError, UsageError
from harness.loadgen.host_load import HostLoad, ProgressCallback
from harness.loadgen.live_answers import read_answers
from harness.loadgen.load_plan import LoadPlan
from harness.loadgen.run_load import deal
from harness.models.text_tokens import token_counter
from harness.records.cell import read_responses
from harness.schema.machines import Calibration
from harness.schema.online_settings import OnlineSettings
from harness.telemetry.cell_monitor import CellMonitor, CpuTime, processes_of
from harness.telemetry.gpu import Idle, idle
from harness.telemetry.machine import environment

#: Loading a tokenizer takes up to a second; a run has one.
counter_of = lru_cache(maxsize=2)(token_counter)


class ThisTestbed(Testbed):
    """This machine. `cpus` says which of its cores are the clients'."""

    def __init__(self, cpus: CpuSplit) -> None:
        self._cpus = cpus

    def serve(self, engine: Engine, settings: EngineSettings, log: Path) -> AbstractContextManager[Server]:
        return engine.open(settings, log)

    def send(
        self,
        plan: LoadPlan,
        reading: Reading,
        clients: int,
        progress: ProgressCallback | None,
        start_delay_s: float,
    ) -> SentLoad:
        with HostLoad(dict(enumerate(deal(plan, clients))), self._cpus.client) as load:
            result = load.run(monotonic() + start_delay_s, progress)
        tokens_of = counter_of(reading.tokenizer) if reading.tokenizer else None
        answers = read_responses(
            result.responses, result.t0, reading.expected, tokens_of, fields=reading.fields
        )
        answers.texts = read_answers(result.responses, reading.texts_of)
        return SentLoad(answers, result.usage)

    @contextmanager
    def watch(self, server: Server) -> Iterator[Watch]:
        watch = Watch()
        pids = server.pids  # of a server that ran already, too
        with CellMonitor(engine=lambda: server.pids, gpus=server.record.gpus, ours=pids) as monitor:
            yield watch
        watch.engine = monitor.summary(watch.begin, watch.end)

    def engine_cpu_s(self, server: Server) -> float:
        return CpuTime().read(processes_of(server.pids))

    def idle(self, gpus: int | None) -> Idle:
        return idle(gpus=gpus)


class ThisMachine(Machines):
    """A run without a cluster."""

    def __init__(self) -> None:
        self.testbeds = [ThisTestbed(split(physical_cores()))]

    def select(self, settings: OnlineSettings) -> Selection:
        return select_engines(settings)

    def calibration(self, settings: OnlineSettings, report: ReportStatus) -> Calibration | None:
        return calibrated(settings.calibrate, report)

    def clients(self, selection: Selection) -> tuple[int, int]:
        return 1, len(selection.placement.cpus.client or (0,))

    def environment(self) -> dict[str, JsonValue]:
        return environment()


def calibrated(measure: bool, report: ReportStatus) -> Calibration | None:
    """The client's calibration on this machine, measured where it never was and `measure` says so.

    Raises:
        BusyMachineError: By `report`.
    """
    stored = load_calibration()
    if stored is not None or not measure:
        return stored
    try:
        return calibrate(quick=True, report_status=report)
    except BusyMachineError:
        raise
    except BenchError:
        return None


@contextmanager
def machines_of(settings: OnlineSettings) -> Iterator[Machines]:
    """This machine or, with --cluster, nodes of a cluster; nothing is left on them after the `with`.

    Raises:
        UsageError: Ray is not installed here, there is no such cluster, or it has too few free nodes.
    """
    if settings.cluster is None:
        yield ThisMachine()
        return
    if find_spec("ray") is None:
        raise UsageError("--cluster needs Ray, which is not installed", "pip install 'rosebench[cluster]'")
    from harness.cluster.ray_cluster import ray_machines  # nothing else needs Ray

    with ray_machines(settings) as machines:
        yield machines
