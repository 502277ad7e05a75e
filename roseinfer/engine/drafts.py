"""Drafts by a small model, which runs beside the engine's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import NO_COPIES, NO_INTS, Batch, Ints
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.choose import choose_runner
from roseinfer.engine.graphs import MixedSteps
from roseinfer.engine.load import LoadedModel, load_model
from roseinfer.engine.ranks.messages import StepLimits
from roseinfer.engine.resolve import chunk_size
from roseinfer.engine.runner import Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.kvcache.pool import KVPool
from roseinfer.model_folder import model_folder
from roseinfer.models.config import ModelConfig, read
from roseinfer.request.params import SAMPLING
from roseinfer.scheduler.assemble import assemble, decode_batch
from roseinfer.scheduler.policies import Chunk, ChunkedPrompts, Policies
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.speculation import MOST_ROWS, UNSEEN


def load_draft_model(config: EngineConfig, target: ModelConfig, max_model_len: int) -> LoadedModel:
    """Load the model that `config.speculate` names, to draft for `target` with a context of `max_model_len`.
    Raises ConfigError where it cannot."""
    assert config.speculate is not None
    shape, what = read(model_folder(config.speculate)), f"--speculate {config.speculate}"
    if shape.vocab_size != target.vocab_size:
        raise ConfigError(
            f"{what} has {shape.vocab_size} tokens and the model {target.vocab_size}; give one with the same"
        )
    if shape.state_shape is not None:
        raise ConfigError(
            f"{what} has recurrent states, which would keep rejected tokens; give another model"
        )
    if shape.max_positions < max_model_len:
        raise ConfigError(f"{what} needs --max-model-len {shape.max_positions}, its positions, or less")
    return load_model(replace(config, model=config.speculate, max_model_len=max_model_len, quantization=None))


class DraftModel:
    """Drafts the tokens that a model finds likeliest, one decode step for all requests after the other.

    Its keys and values are in a cache of its own, at the places that the target's have in the target's: so a
    request's blocks are there, shared, preempted and released for both. `Request.draft_context` counts its
    tokens in this cache; what comes after them, rejected drafts for one, is written again.
    """

    def __init__(
        self, runner: Runner, policies: Policies, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runner, self._policies, self._clock = runner, policies, clock
        self.caught_up_s = 0.0

    @classmethod
    def of(
        cls, config: EngineConfig, loaded: LoadedModel, target: KVPool, limits: StepLimits, policies: Policies
    ) -> DraftModel:
        """The draft model `loaded` for requests with places in the cache `target`."""
        pool = KVPool(loaded.kv_shape, target.num_blocks, target.block_size, target.device)
        most = max(limits.prefill_max_tokens, limits.max_model_len) + MOST_ROWS
        limits = StepLimits(limits.max_model_len, limits.max_batch_size, most, MixedSteps())
        config = replace(config, batch_invariant=False)
        if (size := chunk_size(config, policies)) is not None:
            policies = replace(policies, chunking=ChunkedPrompts(size))
        return cls(choose_runner(config, loaded.model, pool, loaded.dtype, limits).runner, policies)

    def draft(self, running: Running, rows: Ints, most: list[int]) -> list[NDArray[np.int32]]:
        """Draft `most` tokens for each of `rows` `[D]`; none for those with too many tokens yet to see, and
        none at all while these are more than half."""
        drafts = {row: NO_INTS.astype(np.int32) for row in rows.tolist()}
        depth_of = {row: count for row, count in zip(rows.tolist(), most, strict=True) if count}
        chunks = self._unseen(running, list(depth_of))
        begun = self._clock()
        first = self._see(running, chunks)
        if any(chunk.count > UNSEEN for chunk in chunks):
            self.caught_up_s += self._clock() - begun
        rows = np.array([chunk.row for chunk in chunks if chunk.last], dtype=np.int64)
        if 2 * len(rows) < len(depth_of):
            return list(drafts.values())
        depths = np.array([depth_of[row] for row in rows.tolist()], dtype=np.int64)
        tokens = np.zeros((len(rows), max(most)), dtype=np.int32)
        tokens[:, 0] = first
        settled = np.stack((rows, first))
        for depth in range(1, int(depths.max(initial=0))):
            active = np.flatnonzero(depths > depth)
            batch = decode_batch(running, rows[active], running.length[rows[active]] + depth)
            tokens[active, depth] = self._run(replace(batch, settled=settled))
            settled = NO_COPIES
        return list((drafts | {row: tokens[i, : depths[i]] for i, row in enumerate(rows.tolist())}).values())

    def _unseen(self, running: Running, rows: list[int]) -> list[Chunk]:
        """The tokens of `rows` that are not in the cache, as many as a step's prompts may have."""
        chunks, policies = list[Chunk](), self._policies
        budget = most = policies.prefill_max_tokens
        for row in rows:
            context = running.request(row).draft_context
            count = rest = int(running.length[row]) - context
            if rest > UNSEEN:
                count = policies.chunking.part(rest, max(budget, 0), first=budget == most)
                budget -= count
            if count:
                chunks.append(Chunk(row, context, count, last=count == rest))
        return chunks

    def _see(self, running: Running, chunks: list[Chunk]) -> Ints:
        """Put the tokens of `chunks` into the cache. Returns what comes after the last ones."""
        rows = np.array([chunk.row for chunk in chunks])
        whole, count = all(chunk.last for chunk in chunks), sum(chunk.count for chunk in chunks)
        for chunk in chunks:
            running.request(chunk.row).draft_context += chunk.count
        if whole and count == len(chunks):
            length = running.length[rows]
            settled = np.stack((rows, running.tokens[rows, length - 1]))
            return self._run(replace(decode_batch(running, rows, length), changed=rows, settled=settled))
        verifies = whole and count <= MOST_ROWS  # on a GPU such steps are captured
        batch = assemble(running, chunks, NO_INTS, rows, NO_COPIES, NO_COPIES, verifies=verifies)
        tokens = self._run(batch)
        return (
            tokens[[segment.start + segment.count - 1 for segment in batch.segments]] if verifies else tokens
        )

    def _run(self, batch: Batch) -> Ints:
        sampling = SamplingBatch(
            np.zeros(len(batch.requests), SAMPLING), batch.positions[batch.last_rows] + 1
        )
        return self._runner.launch(batch, sampling).tokens()
