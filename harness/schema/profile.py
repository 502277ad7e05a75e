"""The profile stage: `profile_manifest.json`, the figures read from its files, and the gaps they explain."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal, get_args

from pydantic import Field, field_validator

from harness.schema.base import Strict, Verdict
from harness.schema.load import Load
from harness.schema.run_info import SCHEMA_VERSION, RunInfo

Tool = Literal["torch", "nsys", "py-spy"]
Tools = Literal["torch", "nsys", "both", "py-spy"]
StepKind = Literal["decode", "prefill"]
Category = Literal[
    "attention",
    "experts",
    "matmul",
    "norm and elementwise",
    "sampling",
    "memory copies",
    "communication",
    "other",
]
Component = Literal["tokenize", "IPC", "scheduling", "detokenize"]


class Artifact(Strict):
    """A file of a profile. `path` is relative to the run's folder."""

    path: str
    kind: str = Field(description="torch trace, nsys report, nsys sqlite, nsys stats or stacks")
    bytes: int
    sha256: str


class Level(Strict):
    """The load that the benchmark put on an engine, as its tokens met it."""

    in_flight: int = Field(description="requests sent and not finished")
    running: float = Field(description="of these, requests between their first and last token")
    step_ms: float | None = Field(
        None, description="mean time between a request's tokens (TPOT); null: no benchmark to compare with"
    )


class ProfileRun(Strict):
    """One engine under one tool."""

    tool: Tool
    engine: str
    variant: str | None = None
    label: str
    cmd: list[str] = Field(description="as the server was started")
    env: dict[str, str] = Field({}, description="set on top of the inherited environment")
    load: Load | None = Field(None, description="the benchmark's that was sampled; null offline")
    n: int = Field(description="requests of the sample")
    level: Level
    steps: int = Field(description="engine steps asked for")
    output_dir: str
    artifacts: list[Artifact] = Field([])
    log_path: str
    wall_s: float = Field(description="of the whole stage for this engine and tool")
    error: str | None = None


class Spent(Strict):
    """The parts of an engine's time, the largest first."""

    label: str
    tool: Tool
    step_ms: float | None = Field(None, description="mean of a step; null of sampled stacks")
    parts: dict[str, float] = Field(description="ms of a step; of sampled stacks the share of a function")


class GapSummary(Strict):
    """A difference `a − b` and its parts, in the unit of the metric."""

    a: str
    b: str
    metric: str
    delta: float
    parts: dict[str, float]
    unexplained: float


class ProfileSummary(Strict):
    """The answer of a profile: what took the time, and where differences come from."""

    spent: list[Spent] = Field([])
    gaps: list[GapSummary] = Field([])
    figures: str = Field(description="the file that has all figures")


class ProfileManifest(Strict):
    """`profile_manifest.json`. Paths are relative to the run's folder."""

    schema_version: Literal[1] = SCHEMA_VERSION
    summary: ProfileSummary | None = Field(
        None, exclude_if=lambda summary: summary is None, description="null: captures were not read yet"
    )
    meta: RunInfo
    runs: list[ProfileRun] = Field([])


class StepFigures(Strict):
    """The steps of one kind. Times are means per step in ms; the parts of `period_ms` add up to it."""

    n: int
    period_ms: float = Field(
        description="from the last kernel before to its own last; on a CPU: start to start"
    )
    period_p50_ms: float
    busy_ms: float = Field(description="with a kernel or copy running on the GPU; on a CPU: an operator")
    gap_ms: float = Field(description="idle before the step's first kernel; on a CPU: between two forwards")
    kernels: float = Field(description="kernels and copies per step; on a CPU: operators")
    kernel_us: float = Field(description="their mean time; on a CPU: self time")
    categories_ms: dict[Category, float] = Field(description="adds up to busy_ms")
    batch: float | None = Field(None, description="mean requests per step, where the ranges tell")

    @field_validator("categories_ms")
    @classmethod
    def _with_all(cls, times: dict[Category, float]) -> dict[Category, float]:
        """Add categories that a stored profile does not know."""
        return dict.fromkeys(get_args(Category), 0.0) | times

    @property
    def idle_ms(self) -> float:
        return self.period_ms - self.busy_ms


class ComponentFigures(Strict):
    """Ranges of one kind on any thread."""

    n: int
    mean_ms: float
    total_ms: float


class KernelFigures(Strict):
    """A kernel, or on a CPU an operator, over the whole capture."""

    name: str
    category: Category
    n: int
    total_ms: float = Field(description="on a CPU: self time")


class RankFigures(Strict):
    """One of the processes, each with a GPU, that share a model. Means over all whole steps, in ms."""

    rank: int
    step_ms: float
    busy_ms: float
    communication_ms: float = Field(description="of busy_ms; waiting for other ranks is in it")


class ProfileFigures(Strict):
    """Figures of one profile: of several ranks, that of rank 0."""

    tool: Tool
    label: str
    device: Literal["cuda", "cpu"]
    steps_by: str = Field(description="how steps were distinguished")
    steps: dict[StepKind, StepFigures]
    capture_ms: float = Field(description="from the first to the last event")
    busy_share: float = Field(description="of the time of all whole steps")
    components: dict[Component, ComponentFigures] = Field(description="where ranges tell")
    kernels: list[KernelFigures] = Field(description="the longest in total")
    ranks: list[RankFigures] = Field([], description="where there are several")
    remarks: list[str] = Field([])

    @property
    def step_ms(self) -> float:
        """Mean time of all whole steps: what a running request waits for each token."""
        return self._mean([step.period_ms for step in self.steps.values()])

    @property
    def busy_ms(self) -> float:
        """Mean time of a step with a kernel or copy running."""
        return self._mean([step.busy_ms for step in self.steps.values()])

    @property
    def communication_ms(self) -> float:
        """Mean time of a step with sums and copies between ranks."""
        return self._mean([step.categories_ms["communication"] for step in self.steps.values()])

    def _mean(self, each: Sequence[float]) -> float:
        return fmean(each, [step.n for step in self.steps.values()])


class GapPart(Strict):
    """A part of a difference `a − b`, in the unit of the metric."""

    name: str
    value_a: float | None
    value_b: float | None
    delta: float
    source: str


class ProfiledStep(Strict):
    """The mean step of a profiled engine and the benchmark's, in ms."""

    label: str
    decode_batch: float | None = Field(None, description="mean requests in a decode step, where ranges tell")
    profiled_ms: float
    busy_ms: float = Field(description="of it with a kernel or copy running")
    benchmark_ms: float | None = Field(description="null: no benchmark to compare with")
    representative: bool = Field(description="whether the two steps are alike enough")


class Gap(Strict):
    """A difference between two engines that verdicts call one, taken apart. `delta` is a − b, of means."""

    a: str
    b: str
    load: Load
    metric: str
    verdicts: dict[str, dict[str, Verdict]] = Field(
        description="that it is a difference, by metric and statistic"
    )
    value_a: float
    value_b: float
    delta: float
    parts: list[GapPart]
    unexplained: float = Field(description="what the parts leave of delta")
    obstacle: Literal["no profile", "other load", "not representative"] | None = Field(
        None, description="why the profiles explain nothing, where they were asked"
    )
    idle_inferred: bool = Field(
        False, description="whether idle time is the benchmark's step without profiled kernels"
    )
    levels: dict[str, Level] = Field({}, description="of both engines, by label")
    steps: list[ProfiledStep] = Field([], description="of both engines, if profiles say")
    artifacts: list[str] = Field([], description="relative to the run's folder")


class Agreement(Strict):
    """Two profilers on one engine: time of kernels in steps of the same kernels, as many of each sort as both
    saw."""

    label: str
    steps: int
    kernels: int
    torch_ms: float
    nsys_ms: float


class Profiles(Strict):
    """Everything known of the profiles of a run: `profiles/figures.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    figures: list[ProfileFigures] = Field([])
    gaps: list[Gap] = Field([])
    agreements: list[Agreement] = Field([])
    sampled: list[Spent] = Field([], description="engines without a profiler, by functions")
    unread: dict[str, str] = Field({}, description="why an artifact was not read, by path")
