"""Every setting, once. The CLI, the YAML of `--config` and `run.json` are made from these models."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PositiveFloat, field_validator, model_validator

from harness.schema.base import Strict
from harness.schema.load import ClosedLoop, Load, Ramp, RequestRate, TraceLoad, from_light_to_heavy
from harness.schema.load_settings import ArrivalProcess, Lengths, RampSetting
from harness.schema.metrics import METRICS, latencies
from harness.schema.mix_settings import Adapters
from harness.schema.presets import PRESETS
from harness.schema.running_servers import Headers, Servers, for_server

#: Which names there are is for the registry to say: installed packages add engines.
EngineName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "fp16", "bf16", "fp32"]
Fit = Literal["drop", "clip", "scale"]
Endpoint = Literal["completions", "chat"]

#: Requests of a closed loop for each one in flight, below which little but its beginning and end is measured.
MIN_ROUNDS = 3

#: Seconds below which a cell of an online run says little about the next one.
SHORT_CELL_S = 10.0

_REFERENCE = re.compile(r"^(?P<name>[a-z][a-z0-9_-]*)(@(?P<variant>[A-Za-z0-9][A-Za-z0-9._-]*))?$")
#: The engine that is a server somebody else started.
RUNNING_SERVER: EngineName = "openai"
#: Settings that say nothing where there is none.
_OF_RUNNING_SERVERS = (
    *("base_url", "server", "served_model", "tokenizer", "header", "api_key_env", "ca_cert", "wait_ready"),
    "prompt_nonce",
)
#: Where it is not asked which engines are installed, and where none is.
DEFAULT_ENGINES: tuple[EngineName, ...] = ("roseinfer", "vllm")


def split(text: str) -> list[str]:
    """The parts of `a,b,c`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _split(value: object) -> object:
    """Accept `a,b,c`, or one number, where a list is meant."""
    if isinstance(value, int | float):
        return [value]
    return split(value) if isinstance(value, str) else value


def asks_auto(engines: object) -> bool:
    """Whether `engines` leaves the choice to the machine, as if none had been named."""
    return _split(engines) == ["auto"]


def _engines(value: object) -> object:
    """`_split`, where `auto` is no engine among others."""
    names = _split(value)
    if isinstance(names, list) and "auto" in names:
        raise ValueError(
            "auto stands alone: it means roseinfer and every other engine that is installed; "
            "give only auto, or the engines by name"
        )
    return names


class EngineRef(Strict):
    """An engine and one of its variants: `NAME` or `NAME@VARIANT`."""

    name: EngineName
    variant: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        match = _REFERENCE.match(value)
        if match is None:
            raise ValueError(f"{value!r} is not NAME or NAME@VARIANT")
        return {"name": match["name"], "variant": match["variant"]}

    def __str__(self) -> str:
        return f"{self.name}@{self.variant}" if self.variant else self.name


def _list_limits(schema: dict[str, Any]) -> None:
    """What `bench schema` shows: each metric that a limit can be set on as a field of its own."""
    limit = schema.pop("additionalProperties")
    schema["properties"] = {name: limit | {"title": METRICS[name].label} for name in latencies("slo")}


class Slo(Strict):
    """A service level: a request is good when it meets every limit given. All in ms."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_limits)
    __pydantic_extra__: dict[str, PositiveFloat | None]

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part]
        if any(not sep for _, sep, _ in pairs):
            raise ValueError(f"{value!r} is not like ttft_ms=200,tpot_ms=50")
        return {key.strip(): limit.strip() for key, _, limit in pairs}

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = latencies("slo")
        if unknown := sorted(self.__pydantic_extra__.keys() - known):
            raise ValueError(f"there is no {unknown[0]} to limit; known: {', '.join(known)}")
        return self


class Window(Strict):
    """A part of a cell, in seconds since its first scheduled arrival: `START,END`."""

    start_s: float = Field(ge=0)
    end_s: float = Field(ge=0)

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        start, comma, end = value.partition(",")
        if not comma:
            raise ValueError(f"{value!r} is not START,END in seconds")
        return {"start_s": start.strip(), "end_s": end.strip()}

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end_s < self.start_s:
            raise ValueError(f"{self.end_s:g} s is before {self.start_s:g} s")
        return self


Engines = Annotated[list[EngineRef], BeforeValidator(_engines), Field(min_length=1)]
Scales = Annotated[list[Annotated[float, Field(gt=0)]], BeforeValidator(_split), Field(min_length=1)]
Concurrency = Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_split), Field(min_length=1)]
Rates = Annotated[
    list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(_split), Field(min_length=1)
]


class CommonSettings(Strict):
    """What every benchmark shares."""

    #: Of `bench`, which these are settings of.
    command: ClassVar[str]

    preset: str | None = Field(
        None,
        description=f"settings of a published benchmark, which others override: {', '.join(PRESETS)}",
        json_schema_extra={"metavar": "NAME"},
    )
    model: str = Field(
        "auto", description="hub id, local folder, random:gpt2, random:gpt2-tiny or smollm2-135m"
    )
    device: Device = Field("auto", description="where the engines run")
    dtype: Dtype = Field(
        "auto",
        description="weights and activations; auto: fp16 on a GPU, bf16 on a CPU that has it, else fp32",
    )
    engines: Engines = Field(
        default_factory=lambda: [EngineRef(name=name) for name in DEFAULT_ENGINES],
        description="NAME or NAME@VARIANT, comma separated; auto: roseinfer, and every other installed",
        json_schema_extra={"shown": "auto"},
    )
    max_model_len: int | None = Field(
        None, ge=2, description="context in tokens; the model's own if not given"
    )
    vocab_size: int = Field(32_000, ge=2, description="of prompts, where the model's own is unknown")
    seed: int = Field(0, ge=0, description="of prompts, order and sampling")
    repeats: int = Field(1, ge=1, description="measure everything this many times")
    interleave: bool = Field(
        True,
        description="take the engines in turn, in balanced orders drawn from the seed; "
        "else one after the other as they are given",
    )
    warmup: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="requests before measuring; auto covers every batch size of a closed loop or a batch, "
        "of a trace those up to 32; 0 is none",
    )
    cpu_threads: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="compute threads of every engine on a CPU; auto: one on each of its cores but one, "
        "which is for HTTP and the client",
    )
    prefix_cache: bool = Field(False, description="let engines reuse the KV cache of shared prefixes")
    ignore_eos: bool = Field(True, description="every answer has exactly the length asked for")
    settle: float | None = Field(
        None, gt=0, description="seconds from the start of each cell or batch that are not measured, best 30"
    )
    min_duration: float | None = Field(
        None,
        gt=0,
        description="measure each cell or batch for at least so many seconds, best 30; "
        f"in `bench online` {SHORT_CELL_S:g} with --settle",
    )
    profile: Literal["torch", "nsys", "both"] | None = Field(
        None, description="profile a sample of the heaviest load after the benchmark"
    )
    profile_only: bool = Field(False, description="measure nothing, only profile")
    out: Path | None = Field(None, description="where runs are kept; default outputs/benchmarks/serving")

    @property
    def preset_text(self) -> str | None:
        """What the preset set and nothing else has overridden, and its source; None without one."""
        if self.preset is None:
            return None
        preset = PRESETS[self.preset]
        published = type(self).model_validate(preset.values)
        kept = [
            f"--{key.replace('_', '-')} {text}".removesuffix(" True")
            for key, text in preset.texts.items()
            if getattr(self, key) == getattr(published, key)
        ]
        return f"--preset {self.preset} sets {' '.join(kept)}, as {preset.source} has it"

    @property
    def measured_s(self) -> float:
        """Seconds that a cell is measured at least, after `settle`."""
        return self.min_duration or (SHORT_CELL_S if self.settle else 0.0)

    def idle(self) -> dict[str, str]:
        """Fields that have no effect beside the others, each with the reason."""
        return {}

    @field_validator("engines")
    @classmethod
    def _distinct(cls, engines: list[EngineRef]) -> list[EngineRef]:
        seen = [str(engine) for engine in engines]
        if twice := sorted({name for name in seen if seen.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(twice)}")
        return engines


class OnlineSettings(CommonSettings):
    """`bench online`: replay a trace, keep requests in flight, or send so many a second."""

    command = "online"

    base_url: str | None = Field(None, description="of a running server, which is drawn as openai")
    server: Servers = Field(
        default_factory=dict,
        description="a running server, drawn by that label; may be repeated",
        json_schema_extra={"metavar": "LABEL=URL", "repeatable": True},
    )
    served_model: str | None = Field(
        None,
        min_length=1,
        description="model of the running server, needed where it serves several; "
        "of several servers LABEL=NAME,…",
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="of a running server's model: hub id, local folder or named model; "
        "none: text whose length the server reports",
    )
    endpoint: Endpoint = Field(
        "completions", description="what requests go to: /v1/completions or /v1/chat/completions"
    )
    header: Headers = Field(
        default_factory=dict,
        description="sent to running servers with each request; a VALUE of env:VARIABLE is read from there; "
        "may be repeated",
        json_schema_extra={"metavar": "NAME=VALUE", "repeatable": True},
    )
    api_key_env: str | None = Field(
        None,
        description="environment variable that holds the running server's API key; "
        "of several servers LABEL=NAME,…",
    )
    ca_cert: Path | None = Field(
        None, description="PEM file of certificates to trust beside the system's, for https"
    )
    wait_ready: float = Field(
        0, ge=0, description="seconds to wait for a running server that does not answer yet"
    )
    prompt_nonce: int | None = Field(
        None,
        ge=0,
        description="part of the seed of a running server's prompts, so that its cache knows none of them; "
        "drawn for each run unless given",
        json_schema_extra={"shown": "drawn"},
    )
    trace: str = Field("builtin", description="a name from the catalog, or a file")
    fit: Fit = Field("drop", description="what happens to a request that does not fit the context")
    max_output_len: int | None = Field(
        None, ge=1, description="most output tokens, with --fit clip or --dataset (256)"
    )
    scales: Scales = Field([1.0], description="factors on the time between arrivals; smaller is heavier")
    n: int = Field(
        200,
        ge=1,
        description="requests taken from the head of the trace; otherwise those of each --concurrency or "
        "--request-rate",
    )
    concurrency: Concurrency | None = Field(
        None,
        description="closed loop instead of a trace: requests in flight, each number measured in turn",
    )
    rounds: int | None = Field(
        None, ge=1, description="closed loop: at least so many requests for each in flight, best 10 or more"
    )
    request_rate: Rates | None = Field(
        None,
        description="requests a second instead of a trace, each rate measured in turn; inf: all --n at once",
    )
    ramp: RampSetting | None = Field(
        None, description="requests a second that move evenly from one rate to another, in so many seconds"
    )
    arrivals: ArrivalProcess = Field(
        default_factory=lambda: ArrivalProcess(kind="poisson"),
        description="how the times between requests are distributed with --request-rate or --ramp",
    )
    mixture: str | None = Field(
        None,
        description="--request-rate of the clients in a folder, as ServeGen describes them, at their busiest "
        "or FOLDER@SECONDS: each has its share, its arrivals and its lengths",
        json_schema_extra={"metavar": "FOLDER"},
    )
    dataset: str | None = Field(
        None,
        description="real prompts with --concurrency, --request-rate or --ramp: builtin, sharegpt, "
        "sharegpt:FILE, jsonl:FILE, weka:PLACE or tracelab:PLACE",
    )
    turns: Literal["live", "recorded"] | None = Field(
        None,
        description="send whole conversations of the dataset, a turn after the other, with the engine's own "
        "answers or the recorded ones; else the first prompt of each",
    )
    max_think_s: float | None = Field(
        None, ge=0, description="longest wait between an answer and the next turn; else as recorded"
    )
    input_len: Lengths = Field(128, description="prompt tokens without a trace: a number, or uniform:A:B")
    output_len: Lengths = Field(64, description="output tokens without a trace: a number, or uniform:A:B")
    text_prompts: bool = Field(
        False, description="send text of as many tokens instead of token ids, so that engines tokenize"
    )
    clients: Literal["auto"] | Annotated[int, Field(ge=1)] = Field("auto", description="client processes")
    calibrate: bool = Field(
        True, description="measure the client itself first where this machine has no calibration: 15 s"
    )
    lora: Adapters = Field(
        default_factory=dict,
        description="adapters by their names in requests, drawn by weight; base is the model without one",
        json_schema_extra={"metavar": "NAME:WEIGHT,…"},
    )
    response_format: Path | None = Field(
        None, description="JSON file with a response_format or a JSON schema that answers are to have"
    )
    response_format_share: float = Field(1.0, gt=0, le=1, description="of the requests that are to have it")
    timeout_s: float = Field(300, gt=0, description="longest silence of an answer before it counts as failed")
    deadline_s: float = Field(
        3600, gt=0, description="longest time from a request to the end of its answer, however it drips"
    )
    check_answers: bool = Field(
        True, description="hold greedy answers to a few prompts against transformers in float32"
    )
    accuracy: bool = Field(
        True, description="score a small task on the timed server where the model has trained weights"
    )
    slo: Slo | None = Field(None, description="service level for goodput, e.g. ttft_ms=200,tpot_ms=50")

    def idle(self) -> dict[str, str]:
        chosen, idle = self._loads_option, dict[str, str]()
        if chosen is None:
            needed = "needs --concurrency, --request-rate or --ramp"
            idle |= dict.fromkeys(("input_len", "output_len"), needed)
        else:
            idle |= dict.fromkeys(("trace", "scales"), f"excludes {chosen}")
            if self.mixture is not None:
                idle |= dict.fromkeys(
                    ("arrivals", "input_len", "output_len", "dataset"), "excludes --mixture"
                )
            elif self.dataset is not None:
                idle |= dict.fromkeys(("input_len", "output_len", "fit"), "excludes --dataset")
            else:
                idle |= dict.fromkeys(("fit", "max_output_len"), f"excludes {chosen}")
        if self.fit != "clip" and self.dataset is None:
            idle.setdefault("max_output_len", "needs --fit clip or --dataset")
        if self.dataset is None:
            idle["turns"] = "needs --dataset"
        if self.turns is None:
            idle["max_think_s"] = "needs --turns"
        if chosen != "--concurrency":
            idle["rounds"] = "needs --concurrency"
        if chosen not in ("--request-rate", "--ramp"):
            idle["arrivals"] = "needs --request-rate or --ramp"
        if chosen != "--request-rate":
            idle["mixture"] = "needs --request-rate"
        if chosen == "--ramp":
            idle["n"] = "excludes --ramp, which lasts its own time"
        if self.response_format is None:
            idle["response_format_share"] = "needs --response-format"
        if all(engine.name != RUNNING_SERVER for engine in self.engines):
            idle |= dict.fromkeys(_OF_RUNNING_SERVERS, "needs engine openai")
        return idle

    @model_validator(mode="before")
    @classmethod
    def _running_server(cls, given: object) -> object:
        """An address alone means the server at that address."""
        if not isinstance(given, dict) or "engines" in given:
            return given
        named = given.get("base_url") is not None or given.get("server")
        return given | {"engines": [RUNNING_SERVER]} if named else given

    @property
    def servers(self) -> dict[str, str]:
        """Addresses of the running servers by label."""
        return self.server or ({} if self.base_url is None else {RUNNING_SERVER: self.base_url})

    def of_server(self, text: str | None, label: str) -> str | None:
        """What a setting, `VALUE` or `LABEL=VALUE,…`, says for the running server of that label."""
        return for_server(text, label, self.servers)

    @model_validator(mode="before")
    @classmethod
    def _all_at_once(cls, given: object) -> object:
        """An infinite rate is a closed loop with all requests in flight."""
        if not isinstance(given, dict) or "request_rate" not in given:
            return given
        rates = _split(given["request_rate"])
        if not isinstance(rates, list) or all(str(rate) not in ("inf", ".inf") for rate in rates):
            return given
        if len(rates) > 1 or given.get("concurrency") is not None:
            raise ValueError("--request-rate inf stands alone: it sends all --n requests at once")
        rest = {key: value for key, value in given.items() if key != "request_rate"}
        return rest | {"concurrency": given.get("n", cls.model_fields["n"].default)}

    window: Window | None = Field(None, description="measure only from START to END seconds of each cell")
    steady_state: bool = Field(False, description="measure each cell without its ramp-up and ramp-down")
    aa: bool = Field(False, description="measure every engine as two: the difference found is the noise")

    @property
    def loads(self) -> list[Load]:
        """What each engine is measured at, from light to heavy."""
        if self.concurrency is not None:
            return from_light_to_heavy(ClosedLoop(concurrency=count) for count in self.concurrency)
        kind, cv = self.arrivals.kind, self.arrivals.cv
        if self.ramp is not None:
            return [Ramp(**self.ramp.model_dump(), arrivals=kind, cv=cv)]
        if self.request_rate is not None:
            if self.mixture is not None:
                kind, cv = "clients", None
            return from_light_to_heavy(
                RequestRate(req_per_s=rate, arrivals=kind, cv=cv) for rate in self.request_rate
            )
        return from_light_to_heavy(TraceLoad(scale=scale) for scale in self.scales)

    @property
    def _loads_option(self) -> str | None:
        """The option that says what the loads are; None: a trace's scales."""
        return next((option for option, value in self._loads_options.items() if value is not None), None)

    @property
    def _loads_options(self) -> dict[str, object]:
        return {"--concurrency": self.concurrency, "--request-rate": self.request_rate, "--ramp": self.ramp}

    def requests(self, load: Load) -> int:
        """How many are sent at a load; of a trace at most, where it has fewer."""
        if not isinstance(load, ClosedLoop):
            return self.n
        return max(self.n, (self.rounds or 0) * load.concurrency)

    @property
    def cut(self) -> Window | Literal["steady"] | None:
        """The part of each cell that is measured; None: all."""
        if self.settle is not None:
            return Window(start_s=self.settle, end_s=sys.float_info.max)
        return "steady" if self.steady_state else self.window

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.window is not None and self.steady_state:
            raise ValueError("--window and --steady-state are two answers to one question: give one of them")
        if self.settle is not None and (self.window is not None or self.steady_state):
            raise ValueError("--settle is a window of its own: leave out --window and --steady-state")
        if self.aa and self.repeats < 2:
            raise ValueError("--aa needs repeats to see how they differ: give --repeats 2 or more, best 5")
        if any(engine.name == RUNNING_SERVER for engine in self.engines) and not self.servers:
            raise ValueError("engine openai needs --base-url, the address of the running server")
        given = [option for option, value in self._loads_options.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} are two kinds of load: give one of them")
        if (self.dataset or "").startswith(("weka:", "tracelab:")) and self.turns != "recorded":
            raise ValueError("such a --dataset has jobs of agents without text: give --turns recorded")
        if self.dataset is not None and not given:
            raise ValueError(
                "--dataset says what is sent, not when: give --concurrency, --request-rate or --ramp"
            )
        if len(set(self.request_rate or ())) != len(self.request_rate or ()):
            raise ValueError("a request rate is given twice")
        if self.response_format is not None and self.ignore_eos:
            raise ValueError("--response-format needs --no-ignore-eos: such an answer ends on its own")
        if self.base_url is not None and self.server:
            raise ValueError("--base-url is a server of its own: give it as another --server LABEL=URL")
        if len(set(self.scales)) != len(self.scales):
            raise ValueError("a scale is given twice")
        if len(set(self.concurrency or ())) != len(self.concurrency or ()):
            raise ValueError("a number of requests in flight is given twice")
        return self


class OfflineSettings(CommonSettings):
    """`bench offline`: a fixed batch of token-id prompts through each engine's own API."""

    command = "offline"

    num_prompts: int = Field(128, ge=1, description="prompts in the batch")
    input_len: Lengths = Field(256, description="tokens of each prompt: a number, or uniform:A:B")
    output_len: Lengths = Field(64, description="tokens generated for each prompt: a number, or uniform:A:B")
