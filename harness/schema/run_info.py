"""`run.json`: what a run measures, where, and with what."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from harness.schema.base import OfEngine, Strict
from harness.schema.fairness import EngineFact
from harness.schema.files import checked
from harness.schema.machines import Calibration, Host, Prices
from harness.schema.online_settings import OnlineSettings
from harness.schema.search import SearchPlan
from harness.schema.settings import PresetRecord
from harness.schema.tune import TunePlan

SCHEMA_VERSION: Literal[1] = 1


#: What follows the cells of a server.
Check = Literal["answers", "accuracy"]


class Versions(Strict):
    """Versions of this project and, as further fields, of each engine; None where it is not in the run."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str | None]

    git_rev: str | None = None
    source: str | None = Field(None, description="SHA-256 of this project's files as they ran, 16 digits")
    rosebench: str
    torch: str | None = None
    transformers: str | None = None
    python: str


class Code(Strict):
    """The package of an engine, where its interpreter found it."""

    folder: str
    sha256: str = Field(description="of the files: names, contents up to 1 MB, sizes above; 16 digits")


class LaunchRecord(OfEngine):
    """Command, settings and code of one engine's starts."""

    side_of: str | None = Field(None, description="label of an engine that an A/A run measures as two")
    in_process: bool | None = Field(
        None, description="whether a batch went through its own API and not its server; null in older runs"
    )
    about: str = Field("", description="what its variant does, by the engine's file; empty: not known")
    version: str | None = None
    released: date | None = Field(None, description="day on which that version came out; null: not known")
    gpus: int | None = Field(None, description="that it was started on; null: of an older run, or not known")
    argv: list[str] = Field([])
    env: dict[str, str] = Field({}, description="set on top of the inherited environment")
    inherited: dict[str, str] = Field(
        {},
        description="inherited variables that engines and libraries read",
    )
    settings: dict[str, JsonValue] = Field({}, description="as the engine reports them")
    ready_s: float | None = Field(None, description="until its first start was ready; null: not known")
    later_ready_s: list[float] = Field([], description="the same of its later starts, in their order")
    facts: dict[str, EngineFact] = Field({}, description="what the engine says it runs with")
    codes: list[Code] = Field(
        [],
        description="the code of its starts, each once; empty: not known, as in older runs",
    )


class Unasked(Strict):
    """Checks that an engine still lacks after its cells of a repeat, or the error there."""

    label: str
    repeat: int
    what: list[Check] = Field(
        description="answers: the second answer check; accuracy: the accuracy task; empty: its server failed "
        "when it had been asked everything"
    )
    reason: str = Field("", description="what went wrong; empty: the run has not come to it")
    hint: str = ""


class TraceRecord(Strict):
    """Source of the load, and the changes by fitting."""

    name: str
    origin: str
    licence: str | None = None
    citation: str | None = None
    sha256: str | None = None
    note: str | None = None
    requests: int
    fit: str
    dropped: int = Field(0, description="requests that did not fit; of a mixture, as many as are expected")
    changed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompts: int | None = Field(None, description="of a dataset; a cell that sends more repeats some")


class RunInfo(Strict):
    """Everything needed to understand or repeat a run. Its settings are as resolved: nothing is auto."""

    schema_version: Literal[1] = SCHEMA_VERSION
    created: str = Field(description="ISO 8601, UTC")
    command: list[str]
    environment: dict[str, JsonValue] = Field({})
    versions: Versions
    launches: list[LaunchRecord] = Field([])
    order: list[tuple[str, int]] = Field(
        [],
        description="label and repeat in the order of measurement; empty: unknown, of an older run",
    )
    trace: TraceRecord | None = None

    kind: Literal["online", "offline"] = Field("online", description="offline: its load is a batch")
    settings: OnlineSettings
    preset: PresetRecord | None = Field(
        None, exclude_if=lambda preset: preset is None, description="the preset, and what differs from it"
    )
    experts: int = Field(
        0,
        exclude_if=lambda experts: not experts,
        description="of a layer of the model; 0: none, or not known",
    )
    search: SearchPlan | None = Field(None, description="of `bench search`: how loads are chosen")
    tune: TunePlan | None = Field(None, description="of `bench tune`: what is tried, and how")
    prices: Prices | None = Field(None, description="the file given with --price")
    hosts: list[Host] = Field([], description="nodes of a cluster; empty: one machine")
    nonce_drawn: bool = Field(False, description="cells after a resumption have a prompt_nonce of their own")
    interrupted: bool = Field(False, description="the user ended it early: it has not every cell")
    unasked: list[Unasked] = Field([], description="what engines are still to be asked after their cells")
    most_clients: int | None = Field(
        None, description="client processes that --clients auto may take; null: their number was given"
    )

    @property
    def subcommand(self) -> str:
        """The command that made it: `online`, `offline`, `search` or `tune`."""
        return "search" if self.search is not None else "tune" if self.tune is not None else self.kind

    @property
    def is_adaptive(self) -> bool:
        """True if the results so far decide what is measured next."""
        return self.search is not None or self.tune is not None

    @property
    def client_calibration(self) -> Calibration | None:
        """Calibration of the run's load client; None if it was not measured."""
        content = self.environment.get("calibration")
        if not isinstance(content, dict):
            return None
        return checked(content, Calibration, "the client's calibration in the run")

    def counts(self, repeat: int | None) -> bool:
        """Return whether results are of this repeat; the first of a tuning only chose what it compares."""
        return self.tune is None or repeat is None or repeat >= self.tune.rounds


def gpus_used(info: RunInfo, label: str) -> int:
    """GPUs of the engine of that label; 0 on a CPU. Of a running server they are what the settings say."""
    counts = (launch.gpus for launch in info.launches if launch.label == label and launch.gpus is not None)
    by_settings = info.settings.tensor_parallel_size * info.settings.data_parallel_size
    return next(counts, by_settings if info.settings.device == "cuda" else 0)
