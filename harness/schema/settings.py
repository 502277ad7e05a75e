"""Settings that every benchmark shares, in groups, and those of `bench offline`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from harness.schema.base import Strict
from harness.schema.presets import PRESETS
from harness.schema.setting_types import DEFAULT_ENGINES, EngineRef, Engines, Lengths

Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "fp16", "bf16", "fp32"]

#: Title of the last group, which also has options of commands.
OUTPUT = "Settings file, output and progress"
#: Seconds below which a cell of an online run says little about the next one.
SHORT_CELL_S = 10.0
#: Most seconds that a cell can be asked to last: four weeks.
LONGEST_S = 28 * 86_400.0
#: Tokens of a context that nobody reports: requests are as long as asked for.
UNKNOWN_CONTEXT = 1 << 20


class Group(Strict):
    """Settings that help and settings files show under one title."""

    title: ClassVar[str]

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, info: ValidationInfo) -> object:
        """YAML reads `on` and `no` as true and false, which pydantic would take for 1 and 0."""
        switched = any(isinstance(part, bool) for part in (value if isinstance(value, list) else [value]))
        if switched and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("must be a value of the setting, not yes or no")
        return value


class EngineGroup(Group):
    """Engines, and the model that they serve."""

    title = "Engines"

    engines: Engines = Field(
        default_factory=lambda: [EngineRef(name=name) for name in DEFAULT_ENGINES],
        description="NAME or NAME@VARIANT, comma separated; auto: roseinfer, and every other installed",
        json_schema_extra={"shown": "auto"},
    )
    model: str = Field("auto", description="hub id, folder, random:gpt2, random:gpt2-tiny or smollm2-135m")
    device: Device = Field("auto", description="where the engines run")
    dtype: Dtype = Field(
        "auto",
        description="weights and activations; auto: fp16 on a GPU, bf16 on a CPU that has it, else fp32",
    )
    max_model_len: int | None = Field(None, ge=2, description="context in tokens; default: the model's")
    vocab_size: int = Field(32_000, ge=2, description="token ids of prompts, where the model's are unknown")
    cpu_threads: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="compute threads of every engine on a CPU; auto: one on each of its cores but one, "
        "which is for HTTP and the client",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="GPUs, or processes on a CPU, that share each layer"
    )
    data_parallel_size: int = Field(
        1, ge=1, description="replicas of the model behind one port, each on --tensor-parallel-size GPUs"
    )
    max_running_requests: Annotated[int, Field(ge=1)] | Literal["default"] | None = Field(
        None,
        description="requests that an engine runs at a time; if not given, 256 on a GPU, or as many as a "
        "closed loop has in flight, and on a CPU each engine's default; default: that everywhere",
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | Literal["default"] | None = Field(
        None,
        description="share of each GPU's memory for weights and KV cache; 0.85 if not given; default: that "
        "of each engine",
    )
    prefix_cache: bool = Field(False, description="let engines reuse the KV cache of shared prefixes")


class PromptGroup(Group):
    """Prompts of every load."""

    title = "Load"

    preset: str | None = Field(
        None,
        description=f"settings of a published benchmark, which others override: {', '.join(PRESETS)}",
        json_schema_extra={"metavar": "NAME"},
    )
    ignore_eos: bool = Field(True, description="every answer has exactly the length asked for")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of prompts, order and sampling")


class RepeatGroup(Group):
    """Repeats, and the part of each cell that is measured."""

    title = "Confidence in the numbers"

    repeats: int = Field(1, ge=1, description="measure everything this many times")
    interleave: bool = Field(
        True,
        description="take the engines in turn, in balanced orders drawn from the seed; "
        "else one after the other as they are given",
    )
    warmup: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="requests before measuring; auto: every batch size up to that of the load, for a trace "
        "up to 32; a number: as many, at most as many at once as the load has in flight; 0: none",
    )
    settle: float | None = Field(
        None,
        gt=0,
        le=LONGEST_S,
        description="seconds from the start of each cell (one engine at one load, once) or batch that are "
        "not measured; 30 is a good value",
    )
    min_duration: float | None = Field(
        None,
        gt=0,
        le=LONGEST_S,
        description="measure each cell or batch for at least so many seconds; 30 is a good value, "
        f"in `bench online` {SHORT_CELL_S:g} with --settle",
    )

    @property
    def measured_s(self) -> float:
        """Seconds that a cell is measured at least, after `settle`."""
        return self.min_duration or (SHORT_CELL_S if self.settle else 0.0)

    @property
    def cell_s(self) -> float:
        """Seconds that a cell lasts at least, the time to settle included."""
        return (self.settle or 0.0) + self.measured_s


class ProfileGroup(Group):
    """Profiling after a benchmark."""

    title = "Profile"

    profile: Literal["torch", "nsys", "both"] | None = Field(
        None,
        description="after the benchmark, profile a sample of the heaviest load: with PyTorch's profiler, "
        "Nsight Systems or both",
    )
    profile_only: bool = Field(False, description="measure nothing, only profile")


class OutputGroup(Group):
    """Places of files."""

    title = OUTPUT

    out: Path | None = Field(None, description="where runs are kept; default outputs/benchmarks/serving")
    figures: bool = Field(True, description="write each chart as SVG, PNG and CSV too, which takes longest")


class PresetRecord(Strict):
    """A preset as a run used it."""

    name: str
    version: int
    digest: str = Field(description="first digits of the SHA-256 of its values")
    deviations: list[str] = Field(description="settings that are not as it has them; none: the run conforms")


#: Settings that change what is sent or what counts, also where a preset says nothing of them.
_WORK = {
    *("trace", "dataset", "turns", "mixture", "ramp", "rate_series", "shared_prefixes", "sampling", "body"),
    *("settle", "window", "steady_state", "same_prompts", "prefix_cache", "ignore_eos", "slo"),
}


def _as_given(value: object) -> str:
    """Return a setting's value as an option would have it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "not set" if value is None else str(value)


class CommonSettings(OutputGroup, ProfileGroup, RepeatGroup, PromptGroup, EngineGroup):
    """Settings of every benchmark. The last group is shown first."""

    #: The command of `bench` that these are settings of.
    command: ClassVar[str]

    @property
    def preset_text(self) -> str | None:
        """Settings of the preset that nothing else has overridden, and its source; None without one."""
        if self.preset is None:
            return None
        preset = PRESETS[self.preset]
        kept = [
            f"--{key.replace('_', '-')} {value}".removesuffix(" True")
            for key, value in preset.values.items()
            if key not in self._deviating
        ]
        return f"--preset {self.preset} sets {' '.join(kept)}, as {preset.source} has it"

    @property
    def preset_record(self) -> PresetRecord | None:
        """The preset, its version and what is not as it has it; None without one."""
        if self.preset is None:
            return None
        preset = PRESETS[self.preset]
        deviations = [
            f"--{name.replace('_', '-')} {_as_given(getattr(self, name))}" for name in self._deviating
        ]
        return PresetRecord(
            name=self.preset, version=preset.version, digest=preset.digest, deviations=deviations
        )

    @cached_property
    def _deviating(self) -> list[str]:
        """Settings that are not as the preset has them."""
        values = PRESETS[self.preset].values if self.preset else {}
        published = type(self).model_validate(values)
        names = [*values, *sorted(_WORK & type(self).model_fields.keys() - values.keys())]
        return [name for name in names if getattr(self, name) != getattr(published, name)]

    def idle(self) -> dict[str, str]:
        """Fields that have no effect beside the others, each with the reason."""
        return {}


class OfflineSettings(CommonSettings):
    """`bench offline`: a fixed batch of token-id prompts through each engine's own API."""

    command = "offline"
    title = "Load"

    num_prompts: int = Field(128, ge=1, description="prompts in the batch")
    input_len: Lengths = Field(256, description="tokens of each prompt: a number, or uniform:A:B")
    output_len: Lengths = Field(64, description="tokens generated for each prompt: a number, or uniform:A:B")


def titles_of(kind: type[CommonSettings]) -> dict[str, str]:
    """Return the title of each setting's group, in the order in which settings are shown."""
    groups = [part for part in reversed(kind.__mro__) if issubclass(part, Group) and "title" in vars(part)]
    names = {name: group.title for group in groups for name in group.__annotations__}
    return {name: title for name, title in names.items() if name in kind.model_fields}
