"""The interface between the harness and an engine: neutral settings in, a running server and HTTP bodies out.

An engine that the harness starts is a `harness.engines.local.LocalEngine`; a server that is already running
is `harness.engines.adapters.openai`. What only one engine does is in its adapter.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import msgspec
from packaging.version import InvalidVersion, Version
from pydantic import JsonValue

from harness.engines.placement import ONE, Parallel, compute_threads, engine_cores
from harness.engines.prometheus import Samples, speculation_count
from harness.engines.prompts import AS_COUNTED, Lengths, Prompts, Texts, TokenIds, Words
from harness.engines.server_pages import Route
from harness.engines.variants import CONFIGS, Variant
from harness.errors import UsageError
from harness.loadgen.load_plan import Target
from harness.plain_text import hide
from harness.plugins import adapter_call
from harness.schema.load import Load
from harness.schema.online_settings import Endpoint
from harness.schema.profile import Category, Component
from harness.schema.results import Skipped, SpeculationCount
from harness.schema.run_info import LaunchRecord
from harness.schema.setting_types import FROM_ENV, EngineName, EngineRef, draws_tokens
from harness.workload import PlannedRequest

#: Bounds of the number of full contexts in the KV cache of an engine whose cache size is set by us.
MIN_CONTEXTS, MAX_CONTEXTS = 16, 64

#: Names of the dtypes in torch.
TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
#: Fields that ask for the number of tokens so far in every chunk.
COUNT_TOKENS: dict[str, object] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
#: Engines that read a model's generation_config.json take its penalty where a request has none, which changes
#: greedy answers and costs time in every step; the other engines know none.
NO_PENALTY: dict[str, object] = {"repetition_penalty": 1.0}
#: The same of its limits on the tokens that are drawn from.
EVERY_TOKEN: dict[str, object] = {"top_p": 1.0, "top_k": -1}

COMPLETIONS = "/v1/completions"
PATHS: dict[Endpoint, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
    "completions": "/completions",
}
#: Endpoints whose streams have events of many types: the field with the most tokens of an answer, and others
#: that every request has. They have no field for an exact length.
TYPED: dict[Endpoint, tuple[str, dict[str, object]]] = {
    "responses": ("max_output_tokens", {"store": False}),
    "messages": ("max_tokens", {}),
}


def endpoint_target(target: Target, endpoint: Endpoint) -> Target:
    """Return the target of requests to `endpoint`, of the server whose completions are at `target`."""
    if endpoint == "completions":
        return target
    others = tuple(endpoint_target(other, endpoint) for other in target.others)
    return msgspec.structs.replace(target, path=beside(_openai(target.path), PATHS[endpoint]), others=others)


def _openai(path: str) -> str:
    """The path of completions in OpenAI's API, beside which its other endpoints are; an engine may have
    another for completions alone."""
    return path if "/completions" in path else COMPLETIONS


def from_environment(option: str, value: Any) -> Any:
    """Return `value` with each text `env:VARIABLE` in it replaced. Raises UsageError."""
    if isinstance(value, dict):
        return {name: from_environment(option, each) for name, each in value.items()}
    if isinstance(value, list):
        return [from_environment(option, each) for each in value]
    if isinstance(value, str) and value.startswith(FROM_ENV):
        return variable(option, value.removeprefix(FROM_ENV))
    return value


def variable(option: str, name: str) -> str:
    """Return the value of an environment variable, which is never shown. Raises UsageError."""
    if not name.isidentifier():  # perhaps the key itself, which is to be in no log
        raise UsageError(
            f"{option} needs the name of an environment variable, and what was given is not a name",
            "put the key into a variable, as in `export TEAM_KEY=…`, and give TEAM_KEY",
        )
    value = os.environ.get(name)
    if not value:
        raise UsageError(f"{option} {name}: the variable is not set", f"run `export {name}=…`")
    hide(value)
    return value


def beside(path: str, endpoint: str) -> str:
    """The path of another endpoint of the API whose completions are at `path`, with the same query."""
    path, mark, query = path.partition("?")
    return path.removesuffix("/completions") + endpoint + mark + query


@dataclass(frozen=True)
class Encoder:
    """Makes the HTTP body of one request, which is JSON.

    Attributes:
        fields: Fields of every request.
        prompts: Writes the prompt.
        length: The fields that say how many tokens an answer has.
    """

    fields: Mapping[str, object]
    prompts: Prompts
    length: Callable[[int], Mapping[str, object]]

    def __call__(self, request: PlannedRequest) -> bytes:
        request_fields = {**self.prompts.fields(request), **self.length(request.output_tokens)}
        if request.adapter is not None:
            request_fields["model"] = request.adapter
        if request.response_format is not None:
            request_fields["response_format"] = request.response_format
        body = {**self.fields, **request_fields}
        if "tools" not in body:  # as in a trial or a warm-up: servers refuse a choice among none
            body.pop("tool_choice", None)
        return msgspec.json.encode(body)

    def input_tokens(self, request: PlannedRequest) -> int | None:
        """Tokens of the prompt as the server should count them; None where only it can say."""
        return self.prompts.tokens(request)


@dataclass(frozen=True)
class EngineVariant:
    """An engine with one of its variants, as compared in a run. `label` is its name in tables and figures;
    `server` is that of a running server in the settings, and `side_of` the label of an engine that an A/A run
    measures as two. With `in_process` a batch goes through the engine's own API, in a process of its own, and
    not through its server."""

    ref: EngineRef
    variant: Variant
    label: str
    server: str | None = None
    in_process: bool = False
    side_of: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Engine, variant and label, as records about it have them."""
        return {"engine": self.ref.name, "variant": self.ref.variant, "label": self.label}

    def caches_prefixes(self, prefix_cache: bool) -> bool:
        """Return whether the prefix cache is on: the variant's setting, else the run's."""
        override = self.variant.prefix_cache
        return prefix_cache if override is None else override

    def may_know_prompts(self, prefix_cache: bool) -> bool:
        """Return whether its server may have a prompt in a cache. `prefix_cache` is the run's setting."""
        return self.server is not None or self.caches_prefixes(prefix_cache)

    def parallelism(self, parallel: Parallel) -> Parallel:
        """Parallelism of the variant, else the run's, `parallel`."""
        tensor, data = self.variant.tensor_parallel_size, self.variant.data_parallel_size
        return Parallel(tensor or parallel.tensor, data or parallel.data)

    def launch_record(self, **fields: Any) -> LaunchRecord:
        """Make the record of its start. `fields` are those that the variant does not know."""
        return LaunchRecord(
            **self.identity,
            side_of=self.side_of,
            in_process=self.in_process,
            about=self.variant.about,
            **fields,
        )

    def skipped(
        self, reason: str, hint: str = "", *, load: Load | None = None, repeat: int | None = None
    ) -> Skipped:
        """Make the record of a cell of this engine, or of all its cells, that is not in the results."""
        return Skipped(**self.identity, load=load, repeat=repeat, reason=reason, hint=hint)


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine's start, by names that no engine dictates.

    `max_model_len` is the context in tokens. `max_concurrency` is the most requests that the load can have in
    flight, None if unknown. `cpus` are the logical CPUs that the engine may use, None for all. `cpu_threads`
    are its compute threads on a CPU, None for the default of all engines. `parallel` is the run's.
    `max_running_requests` run at a time, and weights and KV cache take `gpu_memory_utilization` of each GPU's
    memory; None: the engine's own default.
    """

    engine_variant: EngineVariant
    model: Path
    served_name: str
    device: Literal["cuda", "cpu"]
    dtype: Literal["fp16", "bf16", "fp32"]
    max_model_len: int
    prefix_cache: bool = False
    max_concurrency: int | None = None
    cpus: tuple[int, ...] | None = None
    cpu_threads: int | None = None
    seed: int = 0
    host: str = "127.0.0.1"
    parallel: Parallel = ONE
    max_running_requests: int | None = None
    gpu_memory_utilization: float | None = None

    @property
    def has_weights(self) -> bool:
        """False for a shape without weights, which each engine draws by itself; True of what is not here."""
        if not self.model.is_dir():
            return True
        return any(file.suffix in (".safetensors", ".bin", ".gguf") for file in self.model.iterdir())

    @property
    def torch_dtype(self) -> str:
        """The dtype's name in torch."""
        return TORCH_DTYPES[self.dtype]

    @property
    def full_contexts(self) -> int:
        """The number of full contexts that the KV cache has space for, where we set it: the requests in
        flight, within MIN_CONTEXTS and MAX_CONTEXTS; on a CPU those that run at a time, where that is set."""
        if self.device == "cpu" and self.max_running_requests is not None:
            return self.max_running_requests
        return min(max(self.max_concurrency or 0, MIN_CONTEXTS), MAX_CONTEXTS)

    @property
    def threads(self) -> int | None:
        """Compute threads on a CPU: the variant's, else the run's, else the default; None on a GPU."""
        if self.device != "cpu":
            return None
        override = self.engine_variant.variant.cpu_threads
        if override == "all":
            return len(engine_cores(self.cpus))
        return override or self.cpu_threads or compute_threads(self.cpus)

    @property
    def parallelism(self) -> Parallel:
        """Parallelism over GPUs, or on a CPU over processes: the variant's, else the run's."""
        return self.engine_variant.parallelism(self.parallel)

    @property
    def gpus(self) -> int:
        """GPUs that it computes on."""
        return self.parallelism.devices if self.device == "cuda" else 0

    @property
    def caches_prefixes(self) -> bool:
        """Return whether the prefix cache is on."""
        return self.engine_variant.caches_prefixes(self.prefix_cache)


@dataclass(frozen=True)
class RequestSettings:
    """Settings of every request of a run, which are streamed, and greedy if `user_fields` has no temperature.

    `tokenizer` is the folder of the model's, None where it is unknown. With `text`, prompts are sent as text
    with the same number of tokens, counted as `lengths` says. `limit_field` names the most tokens of an
    answer; `left_out` are fields that the server refuses. `body` are the fields of a variant, which go before
    the user's own, `user_fields`, and these before the engine's; one that is None is left out. With
    `token_ids`, chunks have the ids of their tokens where the engine can say them, for requests that are not
    timed.
    """

    tokenizer: Path | None
    served_name: str
    ignore_eos: bool = True
    seed: int = 0
    text: bool = False
    body: Mapping[str, JsonValue] = field(default_factory=dict)
    token_ids: bool = False
    endpoint: Endpoint = "completions"
    lengths: Lengths = AS_COUNTED
    limit_field: str = "max_tokens"
    left_out: frozenset[str] = frozenset()
    user_fields: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def own_fields(self) -> dict[str, JsonValue]:
        """Fields of the variant and of the user."""
        return {**self.user_fields, **self.body}

    @property
    def is_sampled(self) -> bool:
        """True if tokens are drawn at random."""
        return draws_tokens(self.own_fields)

    @property
    def drawing(self) -> dict[str, object]:
        """Fields without which some engines draw as a model's generation_config.json says; none if greedy, or
        if the temperature is theirs too."""
        return EVERY_TOKEN if self.own_fields.get("temperature") else {}

    @property
    def token_fields(self) -> dict[str, object]:
        """Extensions of OpenAI's API: no penalty, and in every chunk the number of its tokens or, where asked
        for, their ids, with which those of the whole prompt come."""
        ids = {"return_token_ids": True} if self.token_ids else COUNT_TOKENS
        return ids | NO_PENALTY | self.drawing


@dataclass(frozen=True)
class Installation:
    """An installed engine. `how` says where it was found; `env` is set whenever it runs.

    `python` is the interpreter that has it; for a `llama-server` outside of any, that program itself.
    """

    engine: EngineName
    version: str
    distribution: str
    python: Path
    how: str
    env: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def is_at_least(self, version: str) -> bool:
        """Tell whether it is that version or a later one; a version that is unknown counts as the newest."""
        try:
            return Version(self.version) >= Version(version)
        except InvalidVersion:
            return True


@dataclass(frozen=True)
class Missing:
    """An engine that is not installed, and how to install it."""

    engine: EngineName
    reason: str
    hint: str


@dataclass(frozen=True)
class Launch:
    """The command of a server; `env` is added to the inherited environment.

    `served_name` is the model's name in requests, `path` that of completions. The server is ready when `GET
    ready_path` answers 200.
    """

    argv: tuple[str, ...]
    served_name: str
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    path: str = COMPLETIONS
    ready_timeout_s: float = 600.0
    stop_signal: signal.Signals = signal.SIGINT
    grace_s: float = 10.0


class Server(Protocol):
    """A server that is ready. `record` has no secrets; `target.headers` may."""

    @property
    def target(self) -> Target:
        """Target of requests."""

    @property
    def served_name(self) -> str:
        """The model's name in requests."""

    @property
    def record(self) -> LaunchRecord:
        """Record of its start."""

    @property
    def pids(self) -> list[int]:
        """PIDs of its living processes; empty where it runs already and nothing is known of them."""

    def check(self) -> None:
        """Raises EngineError, with what its log says, if the server has died."""


class Engine(ABC):
    """One kind of server. Instances have no state of a run."""

    name: ClassVar[EngineName]
    display: ClassVar[str]
    #: As figures draw it: `#rrggbb` and one of matplotlib's markers, distinct from other engines'. Empty:
    #: the next of a palette.
    color: ClassVar[str] = ""
    marker: ClassVar[str] = ""
    #: Its file of variants and environments (`harness.engines.variants.EngineFile`), where it brings one.
    config: ClassVar[Path | None] = None
    #: Its file of settings for `bench tune` (`harness.schema.tune.Space`), where it brings one.
    space: ClassVar[Path | None] = None
    #: Its Prometheus histograms of seconds for metrics that are not in its streams (`queue_wait_ms`,
    #: `prefill_ms`): a name, with labels where they choose a series, such as `sglang:queue_time_seconds`.
    histograms: ClassVar[Mapping[str, str]] = {}
    #: Fields of `metrics` or `timings` in its streams that have times of a request in ms, by metric.
    response_times: ClassVar[Mapping[str, str]] = {}
    #: The page with the version of its server that somebody else started, and the key there.
    version_page: ClassVar[tuple[str, str] | None] = None
    #: Its Prometheus series for what is drawn over time, by the names of `records.columns.SERVER`; with
    #: `prefix_hits` and `prefix_queries` the prompt tokens from the prefix cache are counted too.
    server_series: ClassVar[Mapping[str, str]] = {}
    #: Counters of the prompt tokens from each prefix cache that is counted apart: `device`, `host`, `disk`, …
    cache_hits: ClassVar[Mapping[str, str]] = {}
    #: Beginning of its Prometheus counters of drafted tokens; empty: it has none.
    drafts: ClassVar[str] = ""
    #: Its Prometheus counter of output tokens; empty: it has none.
    generated: ClassVar[str] = ""
    #: Whether its completions take prompts as text alone.
    text_only: ClassVar[bool] = False
    #: The route that empties its prefix cache; None if there is none.
    flush: ClassVar[Route | None] = None
    #: The range around the model's forward in its profiles, as a regular expression: a step with a group
    #: `prefill` has prompts, and its requests are the sum of the groups `prompts`, `decodes` and `requests`.
    step_pattern: ClassVar[str] = ""
    #: The range around a whole step in its profiles, where that may hold several forwards.
    whole_step: ClassVar[str] = ""
    #: Names of ranges and kernels in its profiles, as regular expressions, by what they are.
    trace_names: ClassVar[Mapping[Category | Component, str]] = {}

    @property
    def config_file(self) -> Path:
        """File of variants and environments, which need not exist."""
        return self.config or CONFIGS / f"{self.name}.yaml"

    @abstractmethod
    def find(self) -> Installation | Missing:
        """Find the engine on this machine."""

    @abstractmethod
    def open(self, settings: EngineSettings, log: Path) -> AbstractContextManager[Server]:
        """A server that is ready inside the `with` and ended after it. Its output is appended to `log`.

        Raises:
            EngineError: not installed, died, not ready in time, or not ended completely.
        """

    def speculation(self, before: Samples, after: Samples) -> SpeculationCount | None:
        """Count drafted tokens between two readings of its metrics; None if there are none."""
        return speculation_count(self.drafts, before, after) if self.drafts else None

    def label(self, variant: Variant) -> str:
        """Name in tables and figures: `vLLM`, or `vLLM (no async scheduling)`."""
        return f"{self.display} ({variant.label})" if variant.label else self.display

    def adapted(self, server: Server, request_settings: RequestSettings) -> RequestSettings:
        """Return the settings that the server takes, which it may be asked for. Raises EngineError.

        An engine that is started here takes everything that its adapter sends.
        """
        return request_settings

    def encoder(self, request_settings: RequestSettings) -> Encoder:
        """Make the writer of bodies of requests: greedy, streamed, usage at the end.

        Raises:
            EngineError: the model's tokenizer cannot write the prompts, or it has no chat template.
        """
        limit, common = TYPED.get(request_settings.endpoint, ("", {}))
        if limit:
            common = {"stream": True, "temperature": 0, **common}
        else:
            with adapter_call(self.display, "extra_body"):
                common = {**self.common_body(request_settings), **self.extra_body(request_settings)}
        fields = {
            "model": request_settings.served_name,
            **common,
            **request_settings.own_fields,
        }
        left_out = request_settings.left_out
        sent = {name: value for name, value in fields.items() if value is not None and name not in left_out}
        return Encoder(
            from_environment("--body", sent),
            self.prompts(request_settings),
            lambda output_tokens: (
                {limit: output_tokens} if limit else self.length_fields(request_settings, output_tokens)
            ),
        )

    def prompts(self, request_settings: RequestSettings) -> Prompts:
        """Return the writer of its prompts. Raises EngineError."""
        settings = request_settings
        if settings.endpoint != "completions" or (settings.tokenizer is None and settings.text):
            return Words(settings.endpoint, settings.tokenizer, settings.lengths)
        as_text = settings.text or self.text_only
        return Texts(settings.tokenizer) if as_text and settings.tokenizer else TokenIds()

    def common_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Fields of OpenAI's API in every request."""
        return {
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "seed": request_settings.seed,
        }

    def length_fields(self, request_settings: RequestSettings, output_tokens: int) -> dict[str, object]:
        """Fields that say how long an answer is. `min_tokens` too would mask logits in every step."""
        exact = {"ignore_eos": True} if request_settings.ignore_eos else {}
        return {request_settings.limit_field: output_tokens, **exact}

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Fields of this engine beyond the common ones."""
        return {}
