"""Settings of `bench online`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from harness.schema.base import listed
from harness.schema.limits import Slo
from harness.schema.load import (
    Arrivals,
    Batch,
    ClosedLoop,
    Counted,
    Load,
    Ramp,
    RateSeries,
    RequestRate,
    TraceLoad,
    from_light_to_heavy,
    requests_at,
)
from harness.schema.setting_types import (
    MAX_REQUESTS,
    RUNNING_SERVER,
    Adapters,
    ArrivalProcess,
    Body,
    Concurrency,
    HeaderName,
    Headers,
    Lengths,
    Part,
    RampSetting,
    Rates,
    Resources,
    Sampling,
    Scales,
    Series,
    Servers,
    Share,
    SharedPrefixes,
    Window,
    check_for_servers,
    draws_tokens,
    for_server,
)
from harness.schema.settings import LONGEST_S, CommonSettings, Group, OfflineSettings

Fit = Literal["drop", "clip", "scale"]
Endpoint = Literal["completions", "chat", "responses", "messages"]

#: Settings of engines that are started here alone.
_OF_STARTED = ("dtype", "cpu_threads", "max_running_requests", "gpu_memory_utilization", "prefix_cache")
_LENGTHS = ("input_len", "output_len")
_RATES = ("--request-rate", "--ramp", "--rate-series")
_A_RATE = "--request-rate, --ramp or --rate-series"


def _cluster_address(text: str) -> str:
    if not re.fullmatch(r"auto|ray://\S+|[^\s:/]+:\d+", text):
        raise ValueError("must be auto, ray://HOST:PORT or HOST:PORT")
    return text


class ServerGroup(Group):
    """Running servers, which somebody else started."""

    title = "Servers that are running already"

    base_url: str | None = Field(
        None, min_length=1, description="address of a running server, shown as openai"
    )
    server: Servers = Field(
        {},
        description="a running server, under that label in tables and charts; may be repeated; several URLs "
        "are replicas of it",
        json_schema_extra={"metavar": "LABEL=URL,…", "repeatable": True},
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
        description="tokenizer of a running server's model: hub id, local folder or named model; "
        "none: text whose length the server reports",
    )
    endpoint: Endpoint = Field(
        "completions",
        description="requests go to /v1/completions, /v1/chat/completions, OpenAI's /v1/responses or "
        "Anthropic's /v1/messages",
    )
    header: Headers = Field(
        {},
        description="sent to running servers with each request; a VALUE of env:VARIABLE is read from there; "
        "may be repeated",
        json_schema_extra={"metavar": "NAME=VALUE", "repeatable": True},
    )
    route: str | None = Field(
        None,
        description="sticky: requests of a session go to one of several URLs, or have one --session-header; "
        "round-robin (default): each goes to the next, or has its own; of several servers LABEL=sticky,…",
        json_schema_extra={"metavar": "sticky|round-robin"},
    )
    session_header: HeaderName | None = Field(
        None,
        description="header with a name of the request's session, by which a gateway may route it",
        json_schema_extra={"metavar": "NAME"},
    )
    api_key_env: str | None = Field(
        None,
        min_length=1,
        description="environment variable that holds the running server's API key; "
        "of several servers LABEL=NAME,…",
    )
    content_field: Annotated[list[str], BeforeValidator(listed)] = Field(
        [],
        description="field of a chat's deltas with reasoning, beside reasoning_content and reasoning; "
        "may be repeated",
        json_schema_extra={"metavar": "NAME", "repeatable": True},
    )
    server_pid: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="main process of a running server on this machine, whose CPU time is measured; "
        "of several servers LABEL=PID,…",
        json_schema_extra={"metavar": "PID"},
    )
    ca_cert: Path | None = Field(None, description="PEM file of certificates to trust beside the system's")
    wait_ready: float = Field(0, ge=0, description="seconds to wait for a running server to answer")
    prompt_nonce: int | None = Field(
        None,
        ge=0,
        description="part of the seed of a running server's prompts, so that its cache knows none of them; "
        "drawn for each run unless given",
        json_schema_extra={"shown": "drawn"},
    )

    @property
    def servers(self) -> dict[str, str]:
        """Addresses of the running servers by label."""
        return self.server or ({} if self.base_url is None else {RUNNING_SERVER: self.base_url})

    def of_server(self, text: str | None, label: str) -> str | None:
        """Return the part of a setting, `VALUE` or `LABEL=VALUE,…`, for the running server of that label."""
        return for_server(text, label, self.servers)


class LoadGroup(Group):
    """Requests, and when they are sent."""

    title = "Load"

    trace: str = Field("builtin", description="a name from the catalog, or a file")
    fit: Fit = Field("drop", description="what happens to a request that does not fit the context")
    max_output_len: int | None = Field(
        None, ge=1, description="most output tokens, with --fit clip, or with --dataset (256 if not given)"
    )
    scales: Scales = Field(
        [1.0],
        description="factors on the time between arrivals; smaller is heavier",
        examples=["0.4,0.8,1.6"],
    )
    concurrency: Concurrency | None = Field(
        None,
        description="closed loop instead of a trace: requests in flight, each number measured in turn",
        examples=["1,8,64"],
    )
    rounds: int | None = Field(
        None,
        ge=1,
        description="closed loop: requests for each in flight, at least; best 10 or more",
    )
    request_rate: Rates | None = Field(
        None,
        description="requests a second instead of a trace, each rate measured in turn; inf: all --n at once",
        examples=["0.5,2,8"],
    )
    arrivals: ArrivalProcess = Field(
        default_factory=lambda: ArrivalProcess(kind="poisson"),
        description=f"how the times between requests are distributed with {_A_RATE}",
    )
    ramp: RampSetting | None = Field(
        None,
        description="request rate that rises or falls evenly from one to another in so many seconds",
        examples=["2:40:15"],
    )
    rate_series: Series | None = Field(
        None,
        description="request rates one after the other, or a file with one a line, for seconds each",
        examples=["10:60,50:10,10:60"],
        json_schema_extra={"metavar": "RATE:SECONDS,…|FILE"},
    )
    mixture: str | None = Field(
        None,
        description="with --request-rate: the clients that a folder describes in ServeGen's form, each with "
        "its share of the rate, its arrivals and its lengths, at their busiest or at FOLDER@SECONDS",
        json_schema_extra={"metavar": "FOLDER"},
    )
    dataset: str | None = Field(
        None,
        description=f"real prompts with --concurrency, {_A_RATE}: builtin, sharegpt, agentperf, "
        "mt-bench, sharegpt:FILE, jsonl:FILE, otel:PLACE, weka:PLACE or tracelab:PLACE",
    )
    turns: Literal["live", "recorded"] | None = Field(
        None,
        description="send whole conversations of the dataset, a turn after the other, with the engine's own "
        "answers or the recorded ones; else the first prompt of each",
    )
    same_prompts: bool = Field(
        False,
        description="send the dataset as it is, so that a cache may know it from another cell or run; else "
        "each conversation begins with a few words of its own",
    )
    max_think_s: float | None = Field(
        None, ge=0, description="longest wait before the next turn; else as recorded"
    )
    n: int = Field(
        200,
        ge=1,
        le=MAX_REQUESTS,
        description="requests taken from the head of the trace; otherwise those of each --concurrency or "
        "--request-rate",
    )
    num_prompts: int | None = Field(
        None,
        ge=1,
        description="prompts that are all there from the start; null: a load of bench online",
        json_schema_extra={"of_command": "offline"},
    )
    input_len: Lengths = Field(128, description="prompt tokens without a trace: a number, or uniform:A:B")
    output_len: Lengths = Field(64, description="output tokens without a trace: a number, or uniform:A:B")
    shared_prefixes: SharedPrefixes | None = Field(
        None,
        description="random prompts of groups that begin alike, so that a prefix cache can have such a share "
        "of their tokens; zipf=S and depth=N too",
        examples=["groups=8,share=60%"],
        json_schema_extra={"metavar": "groups=N,share=P%,…"},
    )
    text_prompts: bool = Field(False, description="send text of as many tokens instead of token ids")
    lora: Adapters = Field(
        {},
        description="adapters by their names in requests, drawn by weight; base is the model without one",
        json_schema_extra={"metavar": "NAME:WEIGHT,…"},
    )
    response_format: Path | None = Field(
        None, description="JSON file with a response_format or a JSON schema that answers are to have"
    )
    response_format_share: float = Field(
        1.0, gt=0, le=1, description="share of requests with --response-format"
    )
    sampling: Sampling = Field(
        {},
        description="how tokens are drawn, by the names of fields of a request; else greedily",
        examples=["temperature=0.7,top_p=0.95"],
        json_schema_extra={"metavar": "NAME=VALUE,…"},
    )
    body: Body = Field(
        {},
        description="fields of every request beside those that bench writes; null leaves one out, "
        "env:VARIABLE is read from there",
        json_schema_extra={"metavar": "FILE|JSON"},
    )
    timeout_s: float = Field(300, gt=0, description="longest silence of an answer before it counts as failed")
    deadline_s: float = Field(
        3600,
        gt=0,
        description="longest time from a request to the end of its answer, however slowly it comes",
    )
    retries: int = Field(
        0,
        ge=0,
        le=100,
        description="how often a request is sent again that met a limit, an overloaded server or none (429, "
        "408, 5xx), after pauses of as long as Retry-After says at least",
    )
    max_memory: float | None = Field(
        None,
        gt=0,
        description="GiB of memory that the answers in flight may take on each machine that sends requests; "
        "else a quarter of what it has",
    )

    @property
    def counted(self) -> Counted:
        """Unit of a rate, or of a number in flight."""
        return "requests" if self.turns is None else "sessions"

    @property
    def loads(self) -> list[Load]:
        """Loads that each engine is measured at, from light to heavy."""
        of = self.counted
        if self.num_prompts is not None:
            return [Batch(prompts=self.num_prompts)]
        if self.concurrency is not None:
            return from_light_to_heavy(ClosedLoop(of=of, concurrency=count) for count in self.concurrency)
        kind: Arrivals = self.arrivals.kind
        cv = self.arrivals.cv
        if self.ramp is not None:
            return [Ramp(**self.ramp.model_dump(), of=of, arrivals=kind, cv=cv)]
        if self.rate_series is not None:
            return [RateSeries(stages=tuple(self.rate_series), of=of, arrivals=kind, cv=cv)]
        if self.request_rate is not None:
            if self.mixture is not None:
                kind, cv = "clients", None
            return from_light_to_heavy(
                RequestRate(of=of, req_per_s=rate, arrivals=kind, cv=cv) for rate in self.request_rate
            )
        return from_light_to_heavy(TraceLoad(scale=scale) for scale in self.scales)

    @property
    def request_body(self) -> dict[str, JsonValue]:
        """Fields that the user gives every request."""
        return {**self.sampling, **self.body}

    @property
    def is_sampled(self) -> bool:
        """True if tokens are drawn at random."""
        return draws_tokens(self.request_body)

    @property
    def _chosen(self) -> list[str]:
        """Options that say what the loads are; empty for a trace's scales."""
        names = ("num_prompts", "concurrency", "request_rate", "ramp", "rate_series")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]

    def requests(self, load: Load) -> int:
        """Return how many requests are sent at a load; of a trace at most."""
        return requests_at(load, self.n, self.rounds)

    @model_validator(mode="before")
    @classmethod
    def _all_at_once(cls, values: object) -> object:
        """An infinite rate is a closed loop with all requests in flight."""
        if not isinstance(values, dict):
            return values
        rates = values.get("request_rate")
        texts = [str(rate) for rate in rates] if isinstance(rates, list) else str(rates).split(",")
        if not {"inf", ".inf"} & {text.strip() for text in texts}:
            return values
        if len(texts) > 1 or values.get("concurrency") is not None:
            raise ValueError("--request-rate inf stands alone: it sends all --n requests at once")
        rest = {key: value for key, value in values.items() if key != "request_rate"}
        return rest | {"concurrency": values.get("n", cls.model_fields["n"].default)}


#: Settings of running servers alone.
OF_RUNNING_SERVERS = ServerGroup.__annotations__.keys() - {"title", "endpoint"}


#: Repeats that `--until` takes at most if nothing is given, those before its first look, from a look to the
#: next, and from the last but one to the last at least.
MOST_REPEATS, FIRST_LOOK, LOOK_FACTOR, LAST_FACTOR = 50, 4, 1.5, 1.2


class ValidityGroup(Group):
    """Checks of the numbers, and their limits."""

    title = "Confidence in the numbers"

    aa: bool = Field(
        False,
        description="A/A test: measure every engine as if it were two; the difference found is the noise",
    )
    until: Share | None = Field(
        None,
        description="take repeats until a difference of so much, such as 10%, would be found in every "
        f"headline metric, at most --repeats ({MOST_REPEATS} if not given)",
        json_schema_extra={"metavar": "PERCENT"},
    )
    until_seconds: float | None = Field(
        None, gt=0, le=LONGEST_S, description="time for the repeats of --until: then none is begun any more"
    )
    window: Window | None = Field(None, description="measure only from START to END seconds of each cell")
    steady_state: bool = Field(False, description="measure each cell without its ramp-up and ramp-down")
    check_answers: bool = Field(True, description="compare a few greedy answers with transformers in float32")
    accuracy: bool = Field(True, description="score a small task if the model has trained weights")
    slo: Slo | None = Field(
        None,
        description="service level for goodput: ttft_ms=200,tpot_ms=50 or ttft_p99<=200ms,tpot_p99<=50ms",
        examples=["'ttft_p99<=200ms,tpot_p99<=50ms'"],
    )
    max_error_rate: Part = Field(
        0.0,
        description="share of a cell's requests that may fail, such as 2%; each counts as slower than all "
        "others. With more the cell is invalid and stops",
        json_schema_extra={"metavar": "PERCENT", "shown": "0"},
    )
    clients: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="client processes; auto: estimated; a cell that turns out to need more is measured again",
    )
    calibrate: bool = Field(True, description="measure the client first unless that was done: 20 s")
    server_metrics: bool = Field(
        True,
        description="read each server's own metrics meanwhile, where it has a page for Prometheus",
    )
    metrics_interval: float = Field(
        1.0, ge=0.05, le=3600, description="seconds between readings of a server's metrics"
    )
    price: Path | None = Field(
        None,
        description="YAML file of what an hour of a GPU or of the machine costs, for what tokens cost",
        json_schema_extra={"metavar": "FILE"},
    )


class ClusterGroup(Group):
    """Nodes of a Ray cluster."""

    title = "More than one machine"

    cluster: Annotated[str, AfterValidator(_cluster_address)] | None = Field(
        None,
        description="nodes of a Ray cluster: auto is the one that this machine is part of",
        json_schema_extra={"metavar": "auto|ray://HOST:PORT"},
    )
    engine_needs: Resources = Field(
        {},
        description="what the node of an engine has, as Ray counts it, e.g. GPU:2,highmem:1; "
        "else a GPU where there are any",
        json_schema_extra={"metavar": "NAME:AMOUNT,…"},
    )
    load_nodes: int | None = Field(
        None, ge=1, description="nodes that send to an engine; default: all others"
    )
    side_by_side: int = Field(
        1,
        ge=1,
        description="repeats, or a tuning's configurations, measured at once, each on nodes of its own, "
        "which must be equal",
    )
    engines_per_node: int = Field(
        1,
        ge=1,
        description="repeats measured at once on one node, each engine with GPUs and CPUs of its own there",
    )
    share: str | None = Field(
        None,
        min_length=1,
        description="folder of all nodes and this machine through which nodes send tables, as an fsspec URL",
        json_schema_extra={"metavar": "URL"},
    )


class OnlineSettings(ClusterGroup, ValidityGroup, LoadGroup, ServerGroup, CommonSettings):
    """`bench online`: replay a trace, keep requests in flight, or send so many a second."""

    command = "online"

    @classmethod
    def of_batch(cls, settings: OfflineSettings) -> Self:
        """Return the settings of a run whose one load is the batch of `bench offline`."""
        shared = {name: getattr(settings, name) for name in type(settings).model_fields}
        unused = {"calibrate": False, "check_answers": False, "accuracy": False, "server_metrics": False}
        return cls.model_validate(shared | unused)

    @property
    def measured_s(self) -> float:
        return super().measured_s if self.num_prompts is None else self.min_duration or 0.0

    @property
    def cut(self) -> Window | Literal["steady"] | None:
        """The part of each cell that is measured; None: all. A closed loop of sessions is measured while all
        of them are in flight: at the end the longest would set the rate."""
        if self.num_prompts is not None:
            return None  # batches that are not to be measured are not recorded
        if self.settle is not None:
            return Window(start_s=self.settle, end_s=sys.float_info.max)
        agents = self.turns is not None and self.concurrency is not None and self.window is None
        return "steady" if self.steady_state or agents else self.window

    @model_validator(mode="before")
    @classmethod
    def _running_server(cls, values: object) -> object:
        """An address alone means the server at that address."""
        if not isinstance(values, dict) or "engines" in values:
            return values
        named = values.get("base_url") is not None or values.get("server")
        return values | {"engines": [RUNNING_SERVER]} if named else values

    @property
    def looks(self) -> list[int]:
        """Numbers of repeats after which `--until` looks whether they are enough; without it the last one."""
        looks = [self.repeats if self.until is None else min(FIRST_LOOK, self.repeats)]
        while looks[-1] < self.repeats:
            following = 2 * math.ceil(looks[-1] * LOOK_FACTOR / 2)  # even: both orders of the engines
            looks.append(following if following * LAST_FACTOR <= self.repeats else self.repeats)
        return looks

    @model_validator(mode="before")
    @classmethod
    def _enough_to_look(cls, values: object) -> object:
        if not isinstance(values, dict) or values.get("until") is None:
            return values
        return {"repeats": MOST_REPEATS} | values

    def idle(self) -> dict[str, str]:
        load = next(iter(self._chosen), None)
        has_lengths = load is not None and self.mixture is None and self.dataset is None
        can_be_cut = self.fit == "clip" or self.dataset is not None
        running = {engine.name == RUNNING_SERVER for engine in self.engines}
        has_replicas = any("," in url for url in self.servers.values())
        can_route = self.session_header is not None or has_replicas
        has_tls = any(url.lower().startswith("https://") for url in self.servers.values())
        # The first reason of a setting counts.
        reasons: list[tuple[bool, str, Iterable[str]]] = [
            (load not in _RATES, f"needs {_A_RATE}", ["arrivals"]),
            (load is None, f"needs --concurrency, {_A_RATE}", _LENGTHS),
            (load is not None, f"excludes {load}", ["trace", "scales"]),
            (load != "--request-rate", "needs --request-rate", ["mixture"]),
            (self.mixture is not None, "excludes --mixture", ["arrivals", *_LENGTHS, "dataset"]),
            (self.dataset is not None, "excludes --dataset", [*_LENGTHS, "fit"]),
            (has_lengths, f"excludes {load}", ["fit", "max_output_len"]),
            (not can_be_cut, "needs --fit clip or --dataset", ["max_output_len"]),
            (self.dataset is None, "needs --dataset", ["turns", "same_prompts"]),
            (self.turns is None, "needs --turns", ["max_think_s"]),
            (not has_lengths, f"needs --concurrency, {_A_RATE} with random prompts", ["shared_prefixes"]),
            (load != "--concurrency", "needs --concurrency", ["rounds"]),
            (load in _RATES[1:], f"excludes {load}, which lasts its own time", ["n"]),
            (not self.server_metrics, "excludes --no-server-metrics", ["metrics_interval"]),
            (self.until is None, "needs --until", ["until_seconds"]),
            (self.cluster is None, "needs --cluster", ClusterGroup.__annotations__.keys() - {"cluster"}),
            (self.response_format is None, "needs --response-format", ["response_format_share"]),
            (running == {False}, "needs engine openai", OF_RUNNING_SERVERS),
            (not can_route, "needs a server with several URLs, or --session-header", ["route"]),
            (has_replicas, "excludes a server with several URLs", ["server_pid"]),
            (self.cluster is not None, "excludes --cluster", ["server_pid"]),
            (not has_tls, "needs a server whose address begins with https://", ["ca_cert"]),
            (running == {True}, "has no effect on a server that runs already", _OF_STARTED),
        ]
        idle: dict[str, str] = {}
        for applies, reason, names in reasons:
            idle = (dict.fromkeys(names, reason) if applies else {}) | idle
        return idle

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sides, beside = self.side_by_side, self.engines_per_node
        is_cut = self.window is not None or self.steady_state
        has_server = bool(self.servers) or self.num_prompts is not None
        needs_server = any(engine.name == RUNNING_SERVER for engine in self.engines) and not has_server
        of_data = self.dataset is not None
        of_agents = (self.dataset or "").startswith(("weka:", "tracelab:"))
        faults = {
            "give --window or --steady-state, not both": self.window is not None and self.steady_state,
            "--settle excludes --window and --steady-state": self.settle is not None and is_cut,
            "--profile excludes --cluster": None not in (self.cluster, self.profile),
            f"--side-by-side {sides} needs --repeats {sides} or more": sides > self.repeats,
            f"--engines-per-node {beside} needs --side-by-side {beside} or more": beside > sides,
            "--aa needs --repeats 2 or more, best 5": self.aa and self.repeats < 2,
            "--until needs --repeats 2 or more, and --interleave": self.until is not None
            and not (self.repeats > 1 and self.interleave),
            "engine openai needs --base-url, the address of the running server": needs_server,
            f"give only one of {' and '.join(self._chosen)}": len(self._chosen) > 1,
            "jobs of agents have no text: give --turns recorded": of_agents and self.turns != "recorded",
            f"--dataset needs --concurrency, {_A_RATE}": of_data and not self._chosen,
            "give a field in --body or in --sampling, not in both": bool(self.body.keys() & self.sampling),
            "top_p, top_k and min_p draw among tokens: give --sampling a temperature above 0 too": bool(
                {"top_p", "top_k", "min_p"} & self.request_body.keys()
            )
            and not self.is_sampled,
            "--response-format needs --endpoint completions or chat": self.response_format is not None
            and self.endpoint in ("responses", "messages"),
            "--response-format needs --no-ignore-eos": self.response_format is not None and self.ignore_eos,
            "give --base-url as another --server LABEL=URL": self.base_url is not None and bool(self.server),
        }
        for fault, applies in faults.items():
            if applies:
                raise ValueError(fault)
        routes = {self.of_server(self.route, label) for label in self.servers}
        if not routes <= {None, "sticky", "round-robin"}:
            raise ValueError("--route is sticky or round-robin, or of several servers LABEL=sticky,…")
        pids = {self.of_server(self.server_pid, label) for label in self.servers} - {None}
        if not all(pid and re.fullmatch("[1-9][0-9]{0,8}", pid) for pid in pids):
            raise ValueError("--server-pid is the number of a process, or of several servers LABEL=PID,…")
        check_for_servers("--route", self.route, self.servers)
        check_for_servers("--served-model", self.served_model, self.servers)
        check_for_servers("--api-key-env", self.api_key_env, self.servers)
        check_for_servers("--server-pid", self.server_pid, self.servers)
        return self
