"""The requests of a run: what each cell sends, and what warms a server up before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from harness.datasets.agent_formats import is_agent_jobs, read_agent_jobs
from harness.datasets.catalog import load_dataset
from harness.models.text_tokens import whole_ends
from harness.schema.load import ClosedLoop, Load, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import PREFIX_BLOCK_TOKENS
from harness.workload import PlannedRequest, warmup
from harness.workload.agent_content import AgentContent
from harness.workload.content import Content, SyntheticContent, check_lengths
from harness.workload.content_source import ClosedLoopSource, RateSource
from harness.workload.dataset_content import MAX_OUTPUT, DatasetContent
from harness.workload.mixture_source import MixtureSource
from harness.workload.prompt_ends import end_whole
from harness.workload.request_source import RequestSource
from harness.workload.trace_source import TraceSource

WARMUP_OUTPUT_TOKENS = 8
#: Above this size a wave's longest answer does not grow any more.
MAX_STAGGERED = 64


@dataclass(frozen=True)
class Workload:
    """What every engine is asked: the requests of a source, and a warm-up like them."""

    settings: OnlineSettings
    vocab_size: int
    max_model_len: int
    source: RequestSource[Any]
    ends: NDArray[np.int32] | None = None

    @classmethod
    def make(
        cls,
        settings: OnlineSettings,
        vocab_size: int,
        max_model_len: int,
        tokenizer: Tokenizer | None = None,
    ) -> Workload:
        """Read and fit the trace, the mixture or the dataset, or take the shape of synthetic requests.

        Args:
            tokenizer: The model's, for texts and the ends of prompts; None where it is not known.

        Raises:
            UsageError: The source is not there or unreadable, or nothing fits the context.
        """
        source = _source(settings, vocab_size, max_model_len, tokenizer)
        ends = None if tokenizer is None else whole_ends(tokenizer)
        return cls(settings, vocab_size, max_model_len, source, ends)

    def requests(
        self, load: Load, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        """One cell's requests, as `RequestSource.requests` describes them."""
        return self._whole(self.source.requests(load, seed, shape_seed, first, n))

    def is_distinct(self, n: int) -> bool:
        """Whether no two of `n` prompts begin with the same block, as good as surely."""
        return self.source.is_random and n**2 < 1e-12 * (self.vocab_size - 1) ** PREFIX_BLOCK_TOKENS

    def warmup_waves(
        self, seed: int, in_flight: int | None = None, done: int = 0
    ) -> list[Sequence[PlannedRequest]]:
        """Requests to send before measuring, a wave at a time, all of a wave at once.

        `auto` makes waves of 1, 2, 4, … requests up to the load's concurrency. Prompts are as long as the
        load's at evenly spaced quantiles. Each answer is a token shorter than the one before, so that at
        whatever rate the engine takes prompts in, every batch size is met on the way up or down.

        Args:
            in_flight: The concurrency, where the load's own is not the one to come.
            done: The largest wave that the server has had.
        """
        if self.settings.warmup == 0:
            return []
        if self.settings.warmup != "auto":
            return [] if done else [self._wave(self.settings.warmup, seed)]
        batch = self.source.in_flight() if in_flight is None else in_flight
        sizes = [1 << i for i in range(batch.bit_length()) if 1 << i < batch] + [batch]
        return [self._wave(size, seed + i) for i, size in enumerate(sizes) if size > done]

    def _wave(self, size: int, seed: int) -> Sequence[PlannedRequest]:
        inputs = self.source.input_lengths(size)
        lengths = [self._lengths(length, i, size) for i, length in enumerate(inputs)]
        return self._whole(warmup(lengths, self.vocab_size, seed))

    def _lengths(self, input_tokens: int, position: int, size: int) -> tuple[int, int]:
        """Input and output of one request of a wave; the context is kept, at the cost of the input."""
        after = (size - 1 - position) * min(size, MAX_STAGGERED) // size
        output = min(WARMUP_OUTPUT_TOKENS + after, self.max_model_len - 1)
        return min(input_tokens, self.max_model_len - output), output

    def _whole(self, requests: Sequence[PlannedRequest]) -> Sequence[PlannedRequest]:
        """The requests, random prompts of a known tokenizer with a whole character at their ends."""
        return requests if self.ends is None else end_whole(requests, self.ends)


def _source(
    settings: OnlineSettings, vocab_size: int, context: int, tokenizer: Tokenizer | None
) -> RequestSource[Any]:
    if isinstance(settings.loads[0], TraceLoad):
        return TraceSource(settings, vocab_size, context)
    if settings.mixture is not None:
        return MixtureSource(settings, settings.mixture, vocab_size, context)
    content = _content(settings, vocab_size, context, tokenizer)
    if isinstance(settings.loads[0], ClosedLoop):
        return ClosedLoopSource(settings, content)
    return RateSource(settings, content)


def _content(settings: OnlineSettings, vocab_size: int, context: int, tokenizer: Tokenizer | None) -> Content:
    """Prompts of agents' jobs, of a dataset, or random ones."""
    dataset, most = settings.dataset, settings.max_output_len
    if dataset is None:
        check_lengths(settings.input_len, settings.output_len, context)
        return SyntheticContent(settings.input_len, settings.output_len, vocab_size)
    if is_agent_jobs(dataset):
        return AgentContent(read_agent_jobs(dataset), vocab_size, context, most)
    read = load_dataset(dataset)
    return DatasetContent(read, tokenizer, context, settings.ignore_eos, most or MAX_OUTPUT, settings.turns)
