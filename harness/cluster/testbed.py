"""Interface of the machines of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType, TracebackType

from pydantic import JsonValue

from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.selection import Selection
from harness.loadgen.host_load import ProgressCallback
from harness.loadgen.load_plan import ClientUsage, LoadPlan
from harness.records.answers import Answers, Wanted
from harness.records.stream import TimeNames
from harness.schema.calibration import Calibration
from harness.schema.machines import Host, HostCell, MachineLoad
from harness.schema.online_settings import OnlineSettings
from harness.telemetry.idle import Idle

ReportStatus = Callable[[str], None]


@dataclass(frozen=True)
class Reading:
    """Settings by which the answers to a load are read where they arrive.

    `expected` is by request; `tokenizer` the model's folder on this machine, to count tokens of text, None
    where it is unknown; `texts_of` the requests whose answers' texts are kept; `most_tokens` how long each
    answer can be, by request; `response_times` the fields of a stream that may have each time.
    """

    expected: Mapping[int, Wanted] | Sequence[Wanted]
    tokenizer: Path | None = None
    texts_of: Sequence[int] = ()
    most_tokens: Mapping[int, int] | Sequence[int] = ()
    response_times: TimeNames = field(default_factory=dict)


@dataclass
class SentLoad:
    """A load that was sent. `hosts` is empty where this machine sent it."""

    answers: Answers
    usage: list[ClientUsage]
    hosts: list[HostCell] = field(default_factory=list)


class Watch(ABC):
    """A context manager that watches the machine of an engine and those that send."""

    @abstractmethod
    def __enter__(self) -> Watch:
        """Begin."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    #: The first and the last moment that count, by this machine's monotonic clock; set inside the `with`.
    begin, end = -inf, inf
    #: What each node of a cluster did, by its name; valid after the `with`.
    nodes: Mapping[str, MachineLoad] = MappingProxyType({})

    @property
    @abstractmethod
    def machine(self) -> MachineLoad:
        """Load of the engine's machine; valid after the `with`."""


class Testbed(ABC):
    """The machines that measure a cell: one with the engine's server, and those that send."""

    #: The node of the engine's server; None: this machine.
    node: str | None = None

    @abstractmethod
    def serve(self, engine: Engine, settings: EngineSettings, log: Path) -> AbstractContextManager[Server]:
        """A server that is ready inside the `with` and ended after it. Its output is appended to `log`.

        Raises:
            EngineError: As `Engine.open`; or a node was lost.
        """

    @abstractmethod
    def send(
        self,
        plan: LoadPlan,
        reading: Reading,
        clients: int,
        progress: ProgressCallback | None,
        start_delay_s: float,
    ) -> SentLoad:
        """Send a load from so many client processes, and read what came back. Raises BenchError."""

    @abstractmethod
    def watch(self, server: Server) -> Watch:
        """Watches the machines of a cell."""

    def abandon(self) -> None:  # noqa: B027
        """End everything on its nodes at once; nothing is measured on them any more."""

    @abstractmethod
    def engine_cpu_s(self, server: Server) -> float:
        """CPU seconds that the engine's living processes have had."""

    @abstractmethod
    def idle(self, gpus: int | None) -> Idle:
        """The engine's machine without an engine, of so many of its GPUs or of all."""


class Machines(ABC):
    """All machines of a run."""

    testbeds: Sequence[Testbed]
    #: The nodes of a cluster; empty: this machine alone.
    hosts: Sequence[Host] = ()

    @abstractmethod
    def select(self, settings: OnlineSettings) -> Selection:
        """The engines of a run, looked up where they will run. Raises UsageError and EngineError."""

    def use_model(self, name: str, tokenizer: str) -> None:  # noqa: B027
        """Set the run's model and tokenizer, by the names under which every machine finds them."""

    @abstractmethod
    def calibration(self, settings: OnlineSettings, report: ReportStatus) -> Calibration | None:
        """The calibration of the slowest client, measured if there is none yet. None: it cannot be measured,
        or is not to be."""

    @abstractmethod
    def clients(self, selection: Selection) -> tuple[int, int]:
        """The fewest and the most client processes that a testbed should run."""

    @abstractmethod
    def environment(self) -> dict[str, JsonValue]:
        """The engine's machine, as `run.json` has it."""
