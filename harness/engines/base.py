"""The seam between the harness and an engine: neutral settings in, a reachable server and HTTP bodies out.

An engine that this harness starts is a `harness.engines.local.LocalEngine`; one that is already running is
an `Engine` of its own kind (`harness.engines.adapters.openai`). What only one engine does is in its own file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

import msgspec

from harness.engines.prefix_counters import PrefixCounters
from harness.engines.profiler import Route
from harness.engines.text_prompts import TextPrompts
from harness.engines.variants import Variant
from harness.loadgen.load_plan import Target
from harness.schema.results import LaunchRecord
from harness.schema.settings import EngineName, EngineRef

#: Full contexts that a KV cache holds where an engine is told its size, within these bounds.
MIN_CONTEXTS, MAX_CONTEXTS = 16, 64

#: Makes the HTTP body of one request: (prompt token ids, output tokens) -> JSON.
Encoder = Callable[[Sequence[int], int], bytes]

COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Contender:
    """An engine with one of its variants, as it stands in a run. `label` is how it is drawn."""

    ref: EngineRef
    variant: Variant
    label: str


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is started with, in no engine's words.

    `max_model_len` is the context in tokens. `max_concurrency` is the most requests the load can have in
    flight, None if unknown. `cpus` are the logical CPUs the engine is confined to, None if it is not.
    """

    contender: Contender
    model: Path
    served_name: str
    device: Literal["cuda", "cpu"]
    dtype: Literal["fp16", "bf16", "fp32"]
    max_model_len: int
    prefix_cache: bool = False
    max_concurrency: int | None = None
    cpus: tuple[int, ...] | None = None
    seed: int = 0
    host: str = "127.0.0.1"

    @property
    def torch_dtype(self) -> str:
        """The dtype by its name in torch."""
        return {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[self.dtype]

    @property
    def full_contexts(self) -> int:
        """How many requests of the whole context an engine has room for that is told how many: as many as
        there are in flight."""
        return min(max(self.max_concurrency or 0, MIN_CONTEXTS), MAX_CONTEXTS)

    @property
    def caches_prefixes(self) -> bool:
        """Whether the prefix cache is on: the variant's word, else the run's."""
        override = self.contender.variant.prefix_cache
        return self.prefix_cache if override is None else override


@dataclass(frozen=True)
class RequestSettings:
    """How every request of a run is asked: greedy and streamed. `model` is the folder of its tokenizer; with
    `text`, prompts are sent as text of as many tokens."""

    model: Path
    served_name: str
    ignore_eos: bool = True
    seed: int = 0
    text: bool = False


@dataclass(frozen=True)
class Installation:
    """An engine that is there. `how` says in words where it was found; `env` is set whenever it runs.

    `python` is the interpreter that has it; of a `llama-server` that is in none, that program itself.
    """

    engine: EngineName
    version: str
    distribution: str
    python: Path
    how: str
    env: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """An engine that is not there, and what would bring it."""

    engine: EngineName
    reason: str
    hint: str


class Server(Protocol):
    """A server that answers. `record` holds no secret; `target.headers` may."""

    @property
    def target(self) -> Target:
        """Where requests go."""

    @property
    def served_name(self) -> str:
        """What requests call the model."""

    @property
    def record(self) -> LaunchRecord:
        """What it was started with."""

    def check(self) -> None:
        """Raises EngineError, with the last lines of its log, when the server has died."""


class Engine(ABC):
    """One kind of server. Instances carry no state of a run."""

    name: ClassVar[EngineName]
    display: ClassVar[str]
    #: Its Prometheus histograms of seconds, for the metrics that its streams do not tell (`queue_wait_ms`,
    #: `prefill_ms`): names with the labels that choose a series, `sglang:queue_time_seconds`.
    histograms: ClassVar[Mapping[str, str]] = {}

    #: Empties its prefix cache; None: it has no route for that.
    flush: ClassVar[Route | None] = None
    #: Its counters of prompt tokens in the prefix cache.
    prefix_counters: ClassVar[PrefixCounters | None] = None

    @abstractmethod
    def find(self) -> Installation | Missing:
        """Where the engine is on this machine."""

    @abstractmethod
    def open(self, settings: EngineSettings, log: Path) -> AbstractContextManager[Server]:
        """A server that is ready inside the `with` and gone after it. Its output is appended to `log`.

        Raises:
            EngineError: not installed, died, never got ready, or left something behind.
        """

    def label(self, variant: Variant) -> str:
        """As drawn: `vLLM`, or `vLLM (no async scheduling)`."""
        return f"{self.display} ({variant.label})" if variant.label else self.display

    def encoder(self, request_settings: RequestSettings) -> Encoder:
        """The body maker of `POST /v1/completions`: greedy, streamed, usage at the end.

        Raises:
            EngineError: prompts are to be text, and the model's tokenizer cannot write them.
        """
        common = {
            "model": request_settings.served_name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "seed": request_settings.seed,
            **self.extra_body(request_settings),
        }

        written = TextPrompts(request_settings.model).of if request_settings.text else list

        def encode(prompt: Sequence[int], output_tokens: int) -> bytes:
            lengths: dict[str, object] = {"prompt": written(prompt), "max_tokens": output_tokens}
            if request_settings.ignore_eos:
                lengths |= self.fixed_length(output_tokens)
            return msgspec.json.encode(common | lengths)

        return encode

    def fixed_length(self, output_tokens: int) -> dict[str, object]:
        """What makes an answer exactly so long. `min_tokens` as well would mask logits in every step."""
        return {"ignore_eos": True}

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """What this engine understands beyond the common fields."""
        return {}
