"""Interface of the machines of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from pydantic import JsonValue

from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.selection import Selection
from harness.errors import EngineError
from harness.loadgen.host_load import ProgressCallback
from harness.loadgen.load_plan import ClientUsage, LoadPlan
from harness.records.cell import Answers, Wanted
from harness.records.stream import OWN_FIELDS, StreamFields
from harness.schema.machines import Calibration, Host, HostCell, MachineLoad
from harness.schema.online_settings import OnlineSettings
from harness.telemetry.gpu import Idle

ReportStatus = Callable[[str], None]


@dataclass(frozen=True)
class Reading:
    """Settings by which the answers to a load are read where they arrive.

    `expected` is by request; `tokenizer` the model's folder on this machine, to count tokens of text, None
    where it is unknown; `texts_of` the requests whose answers' texts are kept; `most_tokens` how long each
    answer can be, by request; `fields` the fields of a stream beyond OpenAI's own.
    """

    expected: Mapping[int, Wanted] | Sequence[Wanted]
    tokenizer: Path | None = None
    texts_of: Sequence[int] = ()
    most_tokens: Mapping[int, int] | Sequence[int] = ()
    fields: StreamFields = OWN_FIELDS


@dataclass
class SentLoad:
    """A load that was sent. `hosts` is empty where this machine sent it."""

    answers: Answers
    usage: list[ClientUsage]
    hosts: list[HostCell] = field(default_factory=list)


@dataclass
class Watch:
    """The machines of a cell, watched inside a `with`, and what they did after it.

    Attributes:
        begin: The first moment that counts, by this machine's monotonic clock in s; set inside the `with`.
        end: The last one.
        nodes: Load of each node of a cluster, by its name.
        engine: Load of the engine's machine; None: no node reports it.
    """

    begin: float = -inf
    end: float = inf
    nodes: Mapping[str, MachineLoad] = field(default_factory=dict)
    engine: MachineLoad | None = None

    @property
    def machine(self) -> MachineLoad:
        """Load of the engine's machine. Raises EngineError if it is unknown."""
        if self.engine is None:
            raise EngineError("no node says what it did in the cell", "see the logs of Ray")
        return self.engine


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
    def watch(self, server: Server) -> AbstractContextManager[Watch]:
        """Watch the machines of a cell inside the `with`."""

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
