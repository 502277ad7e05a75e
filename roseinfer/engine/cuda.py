"""Runs a step on a GPU from captured graphs: the host fills in what changed, launches, and reads later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.attention.base import Batch, Ints
from roseinfer.attention.cuda_paged import CudaPagedAttention, Decodes, Prompts
from roseinfer.attention.prefill import Spans
from roseinfer.engine.logprobs import Asked, Logprobs, collect, tell
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch, part, sample
from roseinfer.engine.staging import Results, Staging, fetch
from roseinfer.kvcache.pool import KVPool
from roseinfer.logprobs import StepLogprobs
from roseinfer.models.model import Model
from roseinfer.ranges import named_range

#: Prompt tokens of the graphs for prompts, and how many prompts these take. More of either run eagerly.
PROMPT_TOKENS = (
    16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 3072, 4096,
    6144, 8192,
)  # fmt: skip
MAX_PROMPTS = 64


@dataclass(frozen=True)
class Captured:
    """A graph, and the logits `[R, vocab]` that it leaves."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class CudaPending(Pending):
    """Tokens `[R]`, and what is told of them, in pinned memory once the event has happened."""

    def __init__(
        self, tokens: Tensor, event: torch.cuda.Event, asked: Asked | None, told: list[Logprobs]
    ) -> None:
        self._tokens, self._event = tokens, event
        self._asked, self._told = asked, told

    def tokens(self) -> Ints:
        self._event.synchronize()
        tokens: Ints = self._tokens.numpy().copy()
        return tokens

    def logprobs(self) -> StepLogprobs | None:
        if self._asked is None:
            return None
        self._event.synchronize()
        return collect(self._asked, self._told)


class CudaRunner(Runner):
    """`capacity` running rows with at most `max_blocks` blocks each, `max_batch` of them in a step.

    Row `capacity` belongs to nobody: what pads a batch reads and writes there.
    """

    def __init__(
        self,
        model: Model,
        attention: CudaPagedAttention,
        pool: KVPool,
        *,
        capacity: int,
        max_blocks: int,
        max_batch: int,
        max_prompt_tokens: int,
        pinned: bool,
    ) -> None:
        self._model, self._attention, self._pool = model, attention, pool
        self._nobody, device = capacity, pool.device
        self._longest = max_blocks * pool.block_size
        self._last = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        self._table = torch.zeros(capacity + 1, max_blocks, dtype=torch.int32, device=device)
        self._decoded = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self._first = torch.zeros(max(MAX_PROMPTS, capacity), dtype=torch.int64, device=device)
        self._decode_in = Staging(2 * max_batch, device, pinned=pinned)
        self._changes = Staging(capacity * (1 + max_blocks), device, pinned=pinned)
        self._prompt_in = Staging(3 * max_prompt_tokens + 4 * (capacity + MAX_PROMPTS), device, pinned=pinned)
        self._results = Results(max_batch + capacity)
        self._max_batch = max_batch
        self.decode_sizes = _ladder(max_batch)
        self._prompt_sizes = [size for size in PROMPT_TOKENS if size <= max_prompt_tokens]
        self._decode_graphs: dict[int, Captured] = {}
        self._prompt_graphs: dict[int, Captured] = {}

    @torch.inference_mode()
    def capture(self, *, prompts: bool) -> None:
        """Capture every graph, the largest first: the smaller ones live in its memory.

        `prompts`: also those for prompts, whose attention must then need nothing from the host.
        """
        pool = torch.cuda.graph_pool_handle()
        self._decode_in.device.fill_(0)
        self._decode_in.device[: self._max_batch] = self._nobody
        for size in reversed(self._prompt_sizes if prompts else []):
            self._prompt_graphs[size] = _capture(partial(self._prompt_step, size), pool)
        for size in reversed(self.decode_sizes):
            self._decode_graphs[size] = _capture(partial(self._decode_step, size), pool)
        torch.cuda.synchronize()

    @torch.inference_mode()
    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        if batch.copies.shape[1]:
            self._pool.copy_blocks(*batch.copies)
        parts: list[Tensor] = []
        told: list[Logprobs] = []
        prompts, asked = len(batch.prefill_requests), sampling.asked
        if batch.segments:
            with named_range("roseinfer.prefill_batch.model_forward"):
                logits = self._launch_prompts(batch)
            if prompts:
                parts.append(self._sampled(logits, self._first[:prompts], batch, sampling, 0))
                told += tell(logits, parts[-1], asked)
        if len(batch.changed):  # read by steps that decode, not by prompts
            self._update_table(batch)
        if len(batch.decode_lengths):
            with named_range("roseinfer.model.forward.cuda_graph_replay"):
                logits = self._launch_decode(batch)
            decoded = self._decoded[: len(batch.decode_lengths)]
            parts.append(self._sampled(logits, decoded, batch, sampling, prompts))
            told += tell(logits, decoded, asked, prompts)
        told = [Logprobs(fetch(part.tokens), fetch(part.values)) for part in told]
        return CudaPending(*self._results.fetch(*parts), asked, told)

    def _update_table(self, batch: Batch) -> None:
        changed = batch.changed
        count, width = len(changed), self._table.shape[1]
        array = self._changes.array()
        array[:count] = changed
        array[count : count * (1 + width)].reshape(count, width)[:] = batch.block_table[changed]
        sent = self._changes.send(count * (1 + width))
        self._table.index_copy_(0, sent[:count].long(), sent[count:].view(count, width))

    def _launch_decode(self, batch: Batch) -> Tensor:
        count, most = len(batch.decode_lengths), self._max_batch
        size = next(size for size in self.decode_sizes if size >= count)
        array = self._decode_in.array()
        array[:count] = batch.decode_requests
        array[count:size] = self._nobody
        array[most : most + count] = batch.decode_lengths
        array[most + count : most + size] = 0
        self._decode_in.send(2 * most)
        captured = self._decode_graphs.get(size)
        if captured is None:
            return self._decode_step(size)
        captured.graph.replay()
        return captured.logits

    def _decode_step(self, size: int) -> Tensor:
        """From the arrays on the device to the tokens in `_decoded` and `_last`. Returns the logits."""
        arrays = self._decode_in.device
        rows, lengths = arrays[:size], arrays[self._max_batch : self._max_batch + size]
        self._attention.use(None, Decodes(self._table, rows, lengths))
        hidden = self._model.forward_last(self._last, rows, lengths, self._attention)
        return self._model.choose(hidden, rows, self._last, self._decoded[:size])

    def _launch_prompts(self, batch: Batch) -> Tensor:
        count, prompts = batch.decode_start, len(batch.segments)
        fresh = not any(segment.context for segment in batch.segments)
        size = min((s for s in self._prompt_graphs if s >= count), default=None) if fresh else None
        if size is None or prompts > MAX_PROMPTS:
            return self._prompts_eagerly(batch)
        array = self._prompt_in.array()
        array[:count] = batch.tokens[:count]
        array[size : size + count] = batch.positions[:count]
        array[2 * size : 2 * size + count] = batch.cache_slots[:count]
        array[count:size] = 0
        array[size + count : 2 * size] = 0
        array[2 * size + count : 3 * size] = -1
        spans, last, rows = _prompt_arrays(array, size)
        spans[0] = 0
        spans[1 : prompts + 1] = np.fromiter((s.start + s.count for s in batch.segments), np.int32, prompts)
        spans[prompts + 1 :] = count
        ends = len(batch.prefill_requests)
        last[:ends] = batch.last_rows[:ends]
        last[ends:] = 0
        rows[:ends] = batch.prefill_requests
        rows[ends:] = self._nobody
        self._prompt_in.send(3 * size + 3 * MAX_PROMPTS + 1)
        captured = self._prompt_graphs[size]
        captured.graph.replay()
        return captured.logits

    def _prompt_step(self, size: int) -> Tensor:
        arrays = self._prompt_in.device
        tokens, positions, slots = arrays[: 3 * size].view(3, size)
        spans, last, rows = _prompt_arrays(arrays, size)
        longest = min(size, self._longest)
        self._attention.use(Prompts(slots, Spans(spans, spans, longest, longest), None), None)
        hidden = self._model.forward(tokens, positions, self._attention).index_select(0, last)
        return self._model.choose(hidden, rows, self._last, self._first[:MAX_PROMPTS])

    def _prompts_eagerly(self, batch: Batch) -> Tensor:
        count, ends = batch.decode_start, len(batch.prefill_requests)
        array = self._prompt_in.array()
        array[:count] = batch.tokens[:count]
        array[count : 2 * count] = batch.positions[:count]
        array[2 * count : 2 * count + ends] = batch.last_rows[:ends]
        array[2 * count + ends : 2 * (count + ends)] = batch.prefill_requests
        sent = self._prompt_in.send(2 * (count + ends))
        self._attention.use(self._attention.prompts(batch), None)
        hidden = self._model.forward(sent[:count], sent[count : 2 * count], self._attention)
        last, rows = sent[2 * count :].view(2, ends)
        return self._model.choose(hidden.index_select(0, last), rows, self._last, self._first[:ends])

    def _sampled(
        self, logits: Tensor, tokens: Tensor, batch: Batch, sampling: SamplingBatch, start: int
    ) -> Tensor:
        """The tokens of requests `start` on: the likeliest are there already, others are drawn."""
        count = len(tokens)
        how = part(sampling, start, count)
        if (how.temperature > 0).any():
            with named_range("roseinfer.sampler"):
                tokens.copy_(sample(logits[:count], how))
                rows = torch.from_numpy(batch.requests[start : start + count]).to(tokens.device)
                self._last[rows] = tokens
        return tokens


A = TypeVar("A", Tensor, NDArray[np.int32])


def _prompt_arrays(array: A, size: int) -> tuple[A, A, A]:
    """Where prompts begin and end `[MAX_PROMPTS + 1]`, their last rows and their running rows, both
    `[MAX_PROMPTS]`, behind the three arrays of `size` tokens."""
    first = 3 * size
    last = first + MAX_PROMPTS + 1
    rows = last + MAX_PROMPTS
    return array[first:last], array[last:rows], array[rows : rows + MAX_PROMPTS]


def _ladder(largest: int) -> tuple[int, ...]:
    """Batch sizes that have a graph: 1 to 4, then about a fifth to a third apart."""
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64, *range(80, 160, 16), *range(160, 257, 32)]
    sizes += range(320, largest, 64)
    return (*(size for size in sizes if size < largest), largest)


def _capture(step: Callable[[], Tensor], pool: torch.cuda._POOL_HANDLE) -> Captured:
    """Run `step` once, so that its kernels are compiled, then capture it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        logits = step()
    return Captured(graph, logits)
