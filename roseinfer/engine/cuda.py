"""Runs steps on a GPU by replaying CUDA graphs: the host sends what changed, and reads the tokens later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from roseinfer.attention.cuda_paged import Blocks, CudaPagedAttention, Decodes, Prompts
from roseinfer.attention.prefill import Spans
from roseinfer.batch import Batch
from roseinfer.engine.fetched import Fetched
from roseinfer.engine.graphs import (
    SLOTS,
    Captured,
    GraphSizes,
    MixedSteps,
    Recorder,
)
from roseinfer.engine.logprobs import DeviceLogprobs, step_logprobs
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch, is_greedy, sample, uniform
from roseinfer.engine.staging import Inbox, Lines, Outbox
from roseinfer.engine.step_arrays import decode_arrays, prompt_arrays, prompt_numbers, put_decode, put_prompts
from roseinfer.kernels.cuda.draw import draw, takes
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.model import Model
from roseinfer.scheduler.speculation import MOST_ROWS
from roseinfer.tensors import fetch, to_device
from roseinfer.tracing.ranges import named_range


@dataclass(frozen=True)
class _Outcome:
    """Results of a step's requests from `start` on: logits `[≥ R, vocab]`, greedy `tokens` `[R]` on the
    device, and `host_tokens` `[≥ R]`, host memory that holds these tokens once the step has ended."""

    logits: Tensor
    tokens: Tensor
    host_tokens: Tensor
    start: int


class CudaRunner(Runner):
    """At most `capacity` running rows with `max_blocks` blocks each, `max_batch` of which decode in a step;
    `parts` as in Model.decode_parts.

    Row `capacity` belongs to no request: padding reads and writes there.
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
        parts: Mapping[int, int],
        sizes: GraphSizes | None = None,
    ) -> None:
        self._sizes = sizes or GraphSizes()
        most_prompts = self._sizes.most_prompts
        self.model, self._attention, self._pool = model, attention, pool
        self._padding_row, device = capacity, pool.device
        self._longest = max_blocks * pool.block_size
        self._last = torch.zeros(capacity + 1, dtype=torch.int64, device=device)
        self._table = torch.zeros(capacity + 1, max_blocks, dtype=torch.int32, device=device)
        self._decoded = torch.zeros(max_batch, dtype=torch.int64, device=device)
        most_first = max(most_prompts, capacity, MOST_ROWS)
        self._first = torch.zeros(most_first, dtype=torch.int64, device=device)
        self._decode = torch.zeros(2 * max_batch, dtype=torch.int32, device=device)
        self._prompt = torch.zeros(
            prompt_numbers(max_prompt_tokens, capacity + most_prompts), dtype=torch.int32, device=device
        )
        self._lines = Lines(*self._table.shape)
        self._decode_in = Inbox(len(self._decode) + self._lines.size, device, pinned=pinned)
        self._prompt_in = Inbox(len(self._prompt), device, pinned=pinned)
        self._mixed = torch.zeros(most_first + max_batch, dtype=torch.int64, device=device)
        self._decoded_out, self._first_out, self._mixed_out = (
            Outbox(len(x), device) for x in (self._decoded, self._first, self._mixed)
        )
        self._ended = deque(torch.cuda.Event() for _ in range(SLOTS))  # type: ignore[no-untyped-call]
        self._parts = parts
        sides = max(parts.values(), default=1) - 1
        self._sides = [torch.cuda.Stream() for _ in range(sides)]  # type: ignore[no-untyped-call]
        self._max_batch, self._max_prompt_tokens = max_batch, max_prompt_tokens
        self.decode_sizes = self._sizes.decode(max_batch)
        self._contexts = {
            size: [c for c in attention.contexts(size) if c <= self._longest] if model.by_context else [0]
            for size in self.decode_sizes
        }
        self.decode_graphs: dict[tuple[int, int], Captured] = {}
        self.prompt_graphs: dict[int, Captured] = {}
        self.mixed_graphs: dict[tuple[int, int], Captured] = {}
        self._paged = False

    @torch.inference_mode()
    def capture(self, *, prompts: bool, mixed: MixedSteps, verifies: bool = False) -> None:
        """Capture every graph, the largest first, so that smaller ones reuse its memory.

        `prompts`: capture prefill steps and those of `mixed` too. Attention must then need nothing from the
        host, and with `mixed.cut` it must read the KV cache; no prefill graph then exceeds `mixed.tokens`.
        `verifies`: capture steps that verify drafts, as mixed ones without decode rows. Prompts of a model
        with states need the host.
        """
        prompts = prompts and self.model.config.state_shape is None
        capture = Recorder()
        sizes, room = self._sizes, self._sizes.most_prompts
        most = min(mixed.tokens if mixed.cut else sizes.prompts[-1], self._max_prompt_tokens)
        for size in reversed([size for size in sizes.prompts if size <= most] if prompts else []):
            self.prompt_graphs[size] = capture(partial(self._prompt_step, size, room))
        for size in reversed(self.decode_sizes):
            for context in self._contexts[size]:
                self.decode_graphs[size, context] = capture(partial(self._decode_step, size, context))
        self._paged = mixed.cut
        for pair in sizes.mixed(mixed, self._max_batch, self._max_prompt_tokens) if prompts else []:
            self.mixed_graphs[pair] = capture(partial(self._mixed_step, *pair, room))
        for size in reversed(sizes.verify if verifies and self.model.mixes else ()):
            self.mixed_graphs[size, 0] = capture(partial(self._mixed_step, size, 0, size))
        for box in (self._decode_in, self._prompt_in, self._decoded_out, self._first_out, self._mixed_out):
            box.reset()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    @torch.inference_mode()
    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        self._await_slot()
        newest = self._newest(batch, sampling)
        tokens: list[Tensor] = []
        logprobs: list[DeviceLogprobs] = []
        for outcome in self._forward(batch):
            tokens.append(self._chosen(outcome, batch, sampling, newest))
            logprobs += step_logprobs(outcome.logits, outcome.tokens, sampling.logprob_rows, outcome.start)
        self._ended.rotate(-1)
        return Fetched(tokens, sampling.logprob_rows, logprobs, self._ended[-1])

    @torch.inference_mode()
    def follow(self, batch: Batch) -> None:
        """Compute this rank's shard of a step that rank 0 launches and samples."""
        self._await_slot()
        for _ in self._forward(batch):
            pass
        self._ended.rotate(-1)
        self._ended[-1].record()

    def _await_slot(self) -> None:
        """Wait until the step SLOTS before the next one has ended."""
        self._ended[0].synchronize()

    def _forward(self, batch: Batch) -> Iterator[_Outcome]:
        """Launch the step in parts. Each part's logits may overwrite those of the part before."""
        if batch.copies.shape[1]:
            self._pool.copy_blocks(*batch.copies)
        self._lines.change(batch.changed)
        if batch.settled.shape[1]:
            self._last.index_copy_(0, *(to_device(side, self._last.device) for side in batch.settled))
        prompts, count = len(batch.prefill_requests), len(batch.decode_lengths)
        if self.model.mixes and batch.segments and (count or batch.verifying):
            yield from self._launch_mixed(batch)
            return
        if batch.segments:
            with named_range("roseinfer.prefill_batch.model_forward"):
                logits, host_tokens = self._launch_prompts(batch)
            if prompts:
                yield _Outcome(logits, self._first[:prompts], host_tokens, 0)
        if count:
            with named_range("roseinfer.model.forward.cuda_graph_replay"):
                logits, host_tokens = self._launch_decode(batch)
            yield _Outcome(logits, self._decoded[:count], host_tokens, prompts)

    def _launch_mixed(self, batch: Batch) -> list[_Outcome]:
        """Launch prefill and decode rows as one forward pass, from a graph where one fits."""
        count, decodes, ends = batch.decode_start, len(batch.decode_lengths), len(batch.prefill_requests)
        prompts = max(len(batch.segments), ends)
        keys = sum(segment.context + segment.count for segment in batch.segments)
        takes_keys = batch.verifying or (self._attention.takes(keys) if self._paged else keys == count)

        def fits(tokens: int, rows: int) -> bool:
            return tokens >= count and rows >= decodes and (rows > 0) == (decodes > 0)

        sizes = None
        if takes_keys and prompts <= self._sizes.most_prompts:
            sizes = min((sizes for sizes in self.mixed_graphs if fits(*sizes)), key=sum, default=None)
        if sizes is None:
            with named_range("roseinfer.model.forward.eager"):
                self._send_prompts(batch, count, prompts)
                self._send_decode(batch, decodes)
                context = int(batch.decode_lengths.mean()) if decodes else 0
                logits = self._mixed_step(count, decodes, prompts, self._attention.prompts(batch), context)
            room = prompts
        else:
            with named_range("roseinfer.model.forward.cuda_graph_replay"):
                room = self._sizes.most_prompts if decodes else sizes[0]
                self._send_prompts(batch, sizes[0], room)
                self._send_decode(batch, sizes[1])
                captured = self.mixed_graphs[sizes]
                captured.graph.replay()
            logits = captured.logits
        host_tokens = self._mixed_out.next()
        return [
            _Outcome(logits[start:], self._mixed[start : start + number], host_tokens[start:], first)
            for start, first, number in ((0, 0, ends), (room, ends, decodes))
            if number
        ]

    def _mixed_step(
        self, size: int, decodes: int, room: int, prompts: Prompts | None = None, context: int = 0
    ) -> Tensor:
        """`_prompt_step` and `_decode_step` as one forward pass, to `_last`, `_mixed` and the outbox."""
        numbers = self._prompt[: prompt_numbers(size, room)]
        self._prompt_in.take(numbers)
        self._decode_in.take(self._decode, self._table)
        arrays = prompt_arrays(numbers, size, room)
        rows, lengths = decode_arrays(self._decode, decodes, self._max_batch)
        spans = Spans(arrays.queries, arrays.keys, min(size, self._longest), self._longest)
        verifies = not decodes
        blocks = Blocks(self._table, arrays.requests, verifies) if self._paged or verifies else None
        prompts = prompts or Prompts(arrays.slots, spans, blocks)
        self._attention.use(prompts, None if verifies else Decodes(self._table, rows, lengths, context))
        hidden = self.model.forward(
            torch.cat((arrays.tokens, self._last.index_select(0, rows))),
            torch.cat((arrays.positions, (lengths - 1).clamp_(min=0))),
            self._attention,
        )
        hidden = torch.cat((hidden.index_select(0, arrays.last), hidden[size:]))
        out = self._mixed[: room + decodes]
        logits = self.model.choose(hidden, torch.cat((arrays.ended, rows)), self._last, out)
        self._mixed_out.give(out)
        return logits

    def _send_decode(self, batch: Batch, size: int) -> None:
        """Fill the inbox for `size` decode rows; those beyond the batch's are padding."""
        array, most = self._decode_in.array(), self._max_batch
        put_decode(array, batch, size, most, self._padding_row)
        self._decode_in.send(2 * most + self._lines.put(batch.block_table, array[2 * most :]))

    def _launch_decode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the logits, and where the tokens will be."""
        size = next(size for size in self.decode_sizes if size >= len(batch.decode_lengths))
        self._send_decode(batch, size)
        mean = batch.decode_lengths.mean()
        captured = self.decode_graphs[size, max(c for c in self._contexts[size] if c <= mean)]
        captured.graph.replay()
        return captured.logits, self._decoded_out.next()

    def _decode_step(self, size: int, context: int) -> Tensor:
        """From the inbox to tokens in `_last`, `_decoded` and the outbox. Returns the logits.

        `context`: as in Decodes.
        """
        self._decode_in.take(self._decode, self._table)
        rows, lengths = decode_arrays(self._decode, size, self._max_batch)
        hidden = self._hidden(rows, lengths, context)
        logits = self.model.choose(hidden, rows, self._last, self._decoded[:size])
        self._decoded_out.give(self._decoded[:size])
        return logits

    def _hidden(self, rows: Tensor, lengths: Tensor, context: int) -> Tensor:
        """Hidden states `[R, width]` of the last tokens of `rows` `[R]` with `lengths` `[R]` tokens. Some
        batch sizes are computed in parts on parallel streams."""
        parts = self._parts.get(len(rows), 1)
        main, sides = torch.cuda.current_stream(), self._sides[: parts - 1]
        for side in sides:
            side.wait_stream(main)
        hidden = []
        each = zip([main, *sides], rows.tensor_split(parts), lengths.tensor_split(parts), strict=True)
        for stream, own_rows, own_lengths in each:
            self._attention.use(None, Decodes(self._table, own_rows, own_lengths, context))
            with torch.cuda.stream(stream):
                hidden.append(self.model.forward_last(self._last, own_rows, own_lengths, self._attention))
        for side in sides:
            main.wait_stream(side)
        return torch.cat(hidden) if sides else hidden[0]

    def _launch_prompts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the logits, and where the tokens will be."""
        count, prompts = batch.decode_start, max(len(batch.segments), len(batch.prefill_requests))
        fresh = not any(segment.context for segment in batch.segments)
        size = min((s for s in self.prompt_graphs if s >= count), default=None) if fresh else None
        if size is None or prompts > self._sizes.most_prompts:
            self._send_prompts(batch, count, prompts)
            logits = self._prompt_step(count, prompts, self._attention.prompts(batch))
        else:
            self._send_prompts(batch, size, self._sizes.most_prompts)
            captured = self.prompt_graphs[size]
            captured.graph.replay()
            logits = captured.logits
        return logits, self._first_out.next()

    def _send_prompts(self, batch: Batch, size: int, room: int) -> None:
        """Fill the inbox for `size` tokens of `room` prompts; those beyond the batch's are padding."""
        put_prompts(self._prompt_in.array(), batch, size, room, self._padding_row)
        self._prompt_in.send(prompt_numbers(size, room))

    def _prompt_step(self, size: int, room: int, prompts: Prompts | None = None) -> Tensor:
        """From the inbox to tokens in `_last`, `_first` and the outbox. Returns the logits.

        `prompts`: what attention takes; None: it is read from the inbox, and no prompt has cached tokens.
        """
        numbers = self._prompt[: prompt_numbers(size, room)]
        self._prompt_in.take(numbers)
        arrays = prompt_arrays(numbers, size, room)
        longest = min(size, self._longest)
        spans = Spans(arrays.queries, arrays.queries, longest, longest)
        self._attention.use(prompts or Prompts(arrays.slots, spans, None), None)
        hidden = self.model.forward(arrays.tokens, arrays.positions, self._attention)
        hidden = hidden.index_select(0, arrays.last)
        first = self._first[:room]
        logits = self.model.choose(hidden, arrays.ended, self._last, first)
        self._first_out.give(first)
        return logits

    def _newest(self, batch: Batch, sampling: SamplingBatch) -> Tensor | None:
        """A copy of each request's last token `[R]`, which the step overwrites; None without adjustments."""
        if sampling.adjustments is None:
            return None
        return self._last[to_device(batch.requests, self._last.device)]

    def _chosen(
        self, outcome: _Outcome, batch: Batch, sampling: SamplingBatch, newest: Tensor | None
    ) -> Tensor:
        """Host memory that will hold the tokens. Greedy ones are on their way; others are sampled here."""
        logits, tokens, start = outcome.logits, outcome.tokens, outcome.start
        count = len(tokens)
        part = slice(start, start + count)
        params, position, rows = sampling.params[part], sampling.position[part], batch.requests[part]
        adjustments = None if sampling.adjustments is None else sampling.adjustments.part(start, count)
        if adjustments is None and is_greedy(params):
            return outcome.host_tokens[:count]
        logits = logits[:count]
        with named_range("roseinfer.sampler"):
            if adjustments is not None:
                assert newest is not None
                logits = adjustments.apply(logits, newest[start:], fused=self.model.fused)
            if takes(logits):
                draw(logits, params, uniform(params["seed"], position), rows, self._last, tokens)
            else:
                tokens.copy_(sample(logits, params, position))
                self._last[to_device(rows, tokens.device)] = tokens
        return fetch(tokens)
