"""The workload of a run: what each cell sends, and what warms a server up before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from harness.datasets.agents import is_agent_jobs, read_agent_jobs
from harness.datasets.dataset import load_dataset
from harness.datasets.jobs import Job
from harness.errors import UsageError
from harness.models.text_tokens import whole_ends
from harness.schema.load import Batch, ClosedLoop, Load, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import PREFIX_BLOCK_TOKENS
from harness.traces.sampling import shape_seeds
from harness.workload.content import Content, SyntheticContent, check_lengths
from harness.workload.dataset_content import MAX_OUTPUT, AgentContent, DatasetContent
from harness.workload.mixture import MixtureSource
from harness.workload.planned_requests import PlannedRequest, distinct_requests, end_whole, warmup
from harness.workload.shared_prefixes import SharedPrefixContent
from harness.workload.sources import (
    BatchSource,
    ClosedLoopSource,
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
