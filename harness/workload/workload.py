"""The workload of a run: what each cell sends, and what warms a server up before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special
from tokenizers import Tokenizer

from harness.datasets.agents import is_agent_jobs, read_agent_jobs
from harness.datasets.dataset import load_dataset
from harness.datasets.jobs import Job
from harness.errors import UsageError
from harness.models.text_tokens import whole_ends
from harness.schema.load import Batch, ClosedLoop, Load, RequestRate, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import PREFIX_BLOCK_TOKENS
from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK
from harness.schema.run_info import TraceRecord
from harness.schema.setting_types import SharedPrefixes
from harness.traces import sampling
from harness.traces.fit import Fitted, room
from harness.traces.sampling import shape_seeds
from harness.traces.servegen import CITATION, Mixture, TrafficClient, read_mixture
from harness.traces.trace import Trace
from harness.workload.content import Content, Ints, SyntheticContent, check_lengths
from harness.workload.dataset_content import MAX_OUTPUT, AgentContent, DatasetContent
from harness.workload.planned_requests import (
    UNTIMED,
    PlannedRequest,
    PromptSource,
    distinct_requests,
    end_whole,
    open_loop,
    warmup,
)
from harness.workload.sources import (
    BatchSource,
    ClosedLoopSource,
    FittedSource,
    Loads,
    RateSource,
    RequestSource,
    TraceSource,
)

WARMUP_OUTPUT_TOKENS = 8
#: Above this size a wave's longest answer does not grow any more.
MAX_STAGGERED = 64
#: Prompts that are sent twice to see whether a server knows one again, and the least tokens of each.
TWICE, TWICE_TOKENS = 5, 64
#: Streams of the seed that clients draw from; the lower ones are for what is not of a client.
FIRST_STREAM, STREAMS = 16, 3
#: Mean gaps that a client has been sending for when the load begins, so that clients do not begin together.
BEFORE = 20
#: The stream of the seed that draws groups; lower ones are for times, lengths and the order of prompts.
GROUPS = 4


@dataclass(frozen=True)
class Workload:
    """Requests that every engine gets: those of a source, and a warm-up like them.

    Attributes:
        warmup: Requests before measuring, or `auto`.
        ends: (V,) the token to end a random prompt with instead of each token; None: prompts stay.
    """

    source: RequestSource[Any]
    vocab_size: int
    max_model_len: int
    warmup: int | Literal["auto"] = "auto"
    ends: NDArray[np.int32] | None = None

    @classmethod
    def make(
        cls, settings: OnlineSettings, vocab_size: int, max_model_len: int, tokenizer: Tokenizer | None = None
    ) -> Workload:
        """Read and fit the trace, the mixture or the dataset, or take the shape of synthetic requests.

        Args:
            tokenizer: The model's, for texts and the ends of prompts; None if it is unknown.

        Raises:
            UsageError: The source is missing or unreadable, or nothing fits the context.
        """
        source = _source(settings, vocab_size, max_model_len, tokenizer)
        ends = None if tokenizer is None else whole_ends(tokenizer)
        return cls(source, vocab_size, max_model_len, settings.warmup, ends)

    def requests(
        self, load: Load, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        """Plan one cell's requests, as `RequestSource.requests` describes them."""
        return self._whole(self.source.requests(load, seed, shape_seed, first, n))

    def is_distinct(self, n: int) -> bool:
        """Return whether no two of `n` prompts begin with the same block, except with negligible chance."""
        return self.source.is_random and n**2 < 1e-12 * (self.vocab_size - 1) ** PREFIX_BLOCK_TOKENS

    def warmup_waves(
        self, seed: int, in_flight: int | None = None, warmed: int = 0
    ) -> list[list[PlannedRequest]]:
        """Plan requests to send before measuring, a wave at a time, all of a wave at once.

        `auto` makes waves of 1, 2, 4, … requests up to the load's concurrency. Prompts are as long as the
        load's at evenly spaced quantiles. Each answer is a token shorter than the one before, so that at
        whatever rate the engine takes prompts in, every batch size is met on the way up or down.

        Args:
            in_flight: The concurrency to come; None: the load's own.
            warmed: The largest wave that the server has had.
        """
        if self.warmup == 0:
            return []
        if isinstance(self.source, BatchSource):
            return [] if warmed else [self._like_a_batch(self.source, seed)]
        if self.warmup != "auto":
            return [] if warmed else [self._wave(self.warmup, seed)]
        batch = self.source.in_flight() if in_flight is None else in_flight
        sizes = [1 << i for i in range(batch.bit_length()) if 1 << i < batch] + [batch]
        return [self._wave(size, seed + i) for i, size in enumerate(sizes) if size > warmed]

    def prompts_twice(self, seed: int) -> list[PlannedRequest]:
        """Plan TWICE prompts as long as the load's, each of them two times in a row."""
        [length] = self.source.input_lengths(1)
        lengths = [(min(max(length, TWICE_TOKENS), self.max_model_len - 2), 2)] * TWICE
        prompts = distinct_requests("twice", lengths, self.vocab_size, seed)
        return self._whole([replace(it, index=2 * it.index + again) for it in prompts for again in range(2)])

    def _like_a_batch(self, source: BatchSource, seed: int) -> list[PlannedRequest]:
        """Plan requests with the lengths of the batch and other prompts, all at once."""
        [(load, shape_seed)] = source.loads.first_repeat
        batch = source.requests(load, seed, shape_seed)
        count = len(batch) if self.warmup == "auto" else self.warmup
        lengths = cycle((len(request.prompt), request.output_tokens) for request in batch)
        return self._whole(warmup(list(islice(lengths, count)), self.vocab_size, seed))

    def _wave(self, size: int, seed: int) -> list[PlannedRequest]:
        inputs = self.source.input_lengths(size)
        lengths = [self._lengths(length, i, size) for i, length in enumerate(inputs)]
        return self._whole(warmup(lengths, self.vocab_size, seed))

    def _lengths(self, input_tokens: int, position: int, size: int) -> tuple[int, int]:
        """Return input and output of a request of a wave; the context is kept, at the cost of the input."""
        after = (size - 1 - position) * min(size, MAX_STAGGERED) // size
        output = min(WARMUP_OUTPUT_TOKENS + after, self.max_model_len - 1)
        return min(input_tokens, self.max_model_len - output), output

    def _whole(self, requests: list[PlannedRequest]) -> list[PlannedRequest]:
        return requests if self.ends is None else end_whole(requests, self.ends)


def _source(
    settings: OnlineSettings, vocab_size: int, context: int, tokenizer: Tokenizer | None
) -> RequestSource[Any]:
    each = settings.loads
    seeds = shape_seeds(settings.seed, 0, len(each))
    loads: Loads[Any] = Loads(each, seeds, settings.n, settings.rounds, settings.cell_s)
    fitting = (settings.fit, context, vocab_size, settings.max_output_len)
    if isinstance(each[0], TraceLoad):
        return TraceSource(loads, settings.trace, *fitting)
    if settings.mixture is not None:
        return MixtureSource(loads, settings.mixture, *fitting)
    content = _content(settings, vocab_size, context, tokenizer)
    if isinstance(each[0], Batch):
        return BatchSource(loads, content)
    kind = ClosedLoopSource if isinstance(each[0], ClosedLoop) else RateSource
    return kind(loads, content, settings.max_think_s)


def _content(settings: OnlineSettings, vocab_size: int, context: int, tokenizer: Tokenizer | None) -> Content:
    """Return prompts of agents' jobs, of a dataset, or random ones."""
    dataset, most, same = settings.dataset, settings.max_output_len, settings.same_prompts
    if dataset is None:
        check_lengths(settings.input_len, settings.output_len, context)
        synthetic = settings.input_len, settings.output_len, vocab_size
        shared = settings.shared_prefixes
        return SyntheticContent(*synthetic) if shared is None else SharedPrefixContent(shared, *synthetic)
    if is_agent_jobs(dataset):
        return AgentContent(read_agent_jobs(dataset), vocab_size, context, most, same)
    conversations = load_dataset(dataset)
    every = conversations.conversations
    has_tools = any(call.tools for job in every if isinstance(job, Job) for call in job.calls)
    if has_tools and settings.endpoint == "completions":
        raise UsageError(
            f"{conversations.name} has tools, which completions do not take", "add --endpoint chat"
        )
    exact = settings.ignore_eos
    most = most or MAX_OUTPUT
    return DatasetContent(conversations, tokenizer, context, exact, most, settings.turns, same)


def mixture_requests(mixture: Mixture, req_per_s: float, seed: int, n: int, seconds: float) -> Trace:
    """Draw `n` requests, or as many as arrive in `seconds`, at `req_per_s`; each client keeps its share."""
    span = max(seconds, n / req_per_s)
    while True:
        parts = [
            _client_requests(client, client.req_per_s / mixture.req_per_s * req_per_s, span, seed, position)
            for position, client in enumerate(mixture.clients)
        ]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        arrival, inputs, outputs = (column[order] for column in columns)
        if len(arrival) >= n and (not seconds or arrival[-1] - arrival[0] >= seconds):
            count = max(n, int(np.searchsorted(arrival - arrival[0], seconds, side="right")))
            return Trace.build(
                "mixture of clients", arrival[:count], inputs[:count], outputs[:count],
                origin=mixture.origin, sha256=mixture.sha256,
            )  # fmt: skip
        span *= 1.5


def _client_requests(
    client: TrafficClient, req_per_s: float, span: float, seed: int, position: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw the times of one client from 0 to `span`, and the lengths of its requests; (k,) each."""
    stream = FIRST_STREAM + STREAMS * position
    before = BEFORE / req_per_s
    count = ceil((before + span) * req_per_s)
    while True:
        times = np.cumsum(_gaps(client, sampling.uniforms(count, seed, stream))) / req_per_s - before
        if times[-1] > span:
            break
        count *= 2
    within = (times >= 0) & (times <= span)
    inputs, outputs = client.lengths(*(sampling.uniforms(count, seed, stream + i) for i in (1, 2)))
    return times[within], inputs[within], outputs[within]


def _gaps(client: TrafficClient, uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gaps of mean 1 with the client's distribution; the shape of `uniforms`."""
    shape = client.shape
    if client.pattern == "Gamma":
        gaps: NDArray[np.float64] = special.gammaincinv(shape, uniforms) / shape
        return gaps
    weibull: NDArray[np.float64] = (-np.log1p(-uniforms)) ** (1 / shape) / special.gamma(1 + 1 / shape)
    return weibull


class MixtureSource(FittedSource[RequestRate]):
    """Requests of the clients that a folder describes: each one's own renewal process and lengths, added up.

    Raises:
        UsageError: The folder is missing or unreadable, or nothing fits the context.
    """

    def __init__(self, loads: Loads[RequestRate], folder: str, *fitting: Any) -> None:
        super().__init__(loads, *fitting)
        self._mixture = read_mixture(folder)
        if self._rule == "drop":
            self._mixture = self._mixture.within(room(self._context))
        fitted = [self._draw(load, seed) for load, seed in loads.first_repeat]
        self.trace = fitted[-1].trace
        self.record = self._sum([it.record() for it in fitted])

    def requests(
        self, load: RequestRate, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> list[PlannedRequest]:
        return open_loop(self._draw(load, shape_seed).trace, 1.0, self._vocab_size, seed)

    def _draw(self, load: RequestRate, shape_seed: int) -> Fitted:
        """Draw the requests at a rate, and more for the few that --fit scale drops."""
        excess = 1.0
        n, seconds = self.loads.requests(load), self.loads.seconds
        while True:
            rate, count = load.req_per_s * excess, ceil(n * excess)
            trace = mixture_requests(self._mixture, rate, shape_seed, count, seconds)
            fitted = self._fit(trace)
            fitting = len(fitted.trace)
            if fitting == len(trace) or (excess > 1 and fitting >= n):
                in_time = int(np.searchsorted(fitted.trace.arrival_s, seconds, side="right"))
                return fitted.head(max(n, in_time))
            excess = max(excess + (1 / n if fitting < n else 0), len(trace) / fitting)

    def _sum(self, parts: list[TraceRecord]) -> TraceRecord:
        """Return the record of all loads together."""
        names = ("requests", "dropped", "changed", "input_tokens", "output_tokens")
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        sums["dropped"] += round(sums["requests"] * self._mixture.dropped_each)
        note = "drawn from published statistics of clients, not recorded"
        return parts[0].model_copy(update=sums | {"citation": CITATION, "note": note})


class SharedPrefixContent(SyntheticContent):
    """Random prompts of groups that begin alike, so that a prefix cache can have a wanted share of them.

    A group has a chain of blocks. Its parts are those of the nodes above it in a tree: the first part is
    shared by all groups, the last is its own. The first request of a group has the whole chain, as far as it
    is long; each other request has as many of the chain's blocks as keep the share of all prompt tokens that
    came before near the wanted one, and then tokens of its own.
    """

    def __init__(self, shared: SharedPrefixes, *synthetic: object) -> None:
        super().__init__(*synthetic)  # type: ignore[arg-type]
        self._shared = shared

    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        inputs, outputs = self.lengths(n, shape_seed, first)
        groups = draw_groups(self._shared, first + n, shape_seed)[first:]
        blocks = shared_blocks(self._shared, inputs, groups)
        source, longest = PromptSource(self._vocab_size, seed, UNTIMED), int(inputs.max()) // BLOCK
        return [
            PlannedRequest(
                index,
                None,
                source.shared(first + index, length, self._chain(group, longest, first)[:count], BLOCK),
                output,
            )
            for index, (length, output, group, count) in enumerate(
                zip(inputs.tolist(), outputs.tolist(), groups.tolist(), blocks.tolist(), strict=True)
            )
        ]

    @property
    def text(self) -> str:
        return f"{super().text}, {self._shared.text}"

    def _chain(self, group: int, longest: int, first: int) -> list[int]:
        """Return the hashes of a group's blocks; those of a load that is sent again are others."""
        tree = nodes(self._shared, group)
        level = [_part(self._shared.depth, longest, place) for place in range(longest)]
        return [((first << 4 | part) << 24 | tree[part]) << 32 | place for place, part in enumerate(level)]


def draw_groups(shared: SharedPrefixes, n: int, seed: int) -> Ints:
    """Draw the group of each request, (n,): group g, from 0, with a weight of (g + 1)^-zipf."""
    weights = np.arange(1, shared.groups + 1, dtype=np.float64) ** -shared.zipf
    places = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(places, sampling.uniforms(n, seed, GROUPS)), shared.groups - 1)


def nodes(shared: SharedPrefixes, group: int) -> list[int]:
    """Return the node of each level above and at a group: evenly many below each node."""
    if shared.depth == 1:
        return [group]
    branches = ceil(shared.groups ** (1 / (shared.depth - 1)))
    return [group // branches ** (shared.depth - 1 - level) for level in range(shared.depth)]


def _part(depth: int, longest: int, place: int) -> int:
    """Return the level to which the block at `place` of a chain of `longest` belongs."""
    return place * depth // longest


def shared_blocks(shared: SharedPrefixes, inputs: Ints, groups: Ints) -> Ints:
    """Return how many blocks of its group's chain each prompt begins with, (n,).

    Raises:
        UsageError: The wanted share cannot be reached.
    """
    longest, depth = int(inputs.max()) // BLOCK, shared.depth
    ends = [-(-longest * (level + 1) // depth) for level in range(depth)]
    cached_of_node: dict[tuple[int, int], int] = {}
    whole, usable = inputs // BLOCK, np.maximum(inputs - 1, 0) // BLOCK
    in_cache, is_first = np.zeros_like(inputs), np.zeros(len(inputs), dtype=bool)
    begun: set[int] = set()
    for index, group in enumerate(groups.tolist()):
        tree = list(enumerate(nodes(shared, group)))
        cached_blocks = max(min(cached_of_node.get(node, 0), ends[node[0]]) for node in tree)
        in_cache[index] = min(cached_blocks, usable[index])
        if group not in begun:
            begun.add(group)
            is_first[index] = True
            for node in tree:
                cached_of_node[node] = max(cached_of_node.get(node, 0), int(whole[index]))
    target = shared.share * inputs.sum() / BLOCK
    of_first, of_others = int(in_cache[is_first].sum()), int(in_cache[~is_first].sum())
    if not of_first - 1 <= target <= of_first + of_others + 1:
        low, high = (100 * BLOCK * blocks / inputs.sum() for blocks in (of_first, of_first + of_others))
        raise UsageError(
            f"--shared-prefixes share={100 * shared.share:g}%: {len(inputs)} requests of {len(begun)} groups "
            f"can share {low:.1f} to {high:.1f} % of their prompt tokens",
            "take fewer groups, more requests, longer prompts or another share",
        )
    factor = max(0.0, target - of_first) / of_others if of_others else 0.0
    blocks, owed = whole.copy(), 0.0
    for index in np.flatnonzero(~is_first).tolist():
        owed += factor * int(in_cache[index])
        blocks[index] = min(int(in_cache[index]), round(owed))
        owed -= int(blocks[index])
    return blocks
