"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import EngineConfig
from roseinfer.engine.cache_size import num_blocks, resolve_max_model_len, resolve_memory_share
from roseinfer.engine.choose import choose_runner
from roseinfer.engine.drafts import DraftModel, load_draft_model
from roseinfer.engine.load import check_ranks, load_model
from roseinfer.engine.loop import Loop
from roseinfer.engine.ranks.group import RankGroup
from roseinfer.engine.ranks.messages import Profile, StepLimits
from roseinfer.engine.resolve import captured_steps, resolve_policies, resolve_settings, without_rewinding
from roseinfer.engine.runner import Runner
from roseinfer.engine.warmup import warm_up
from roseinfer.info import DraftCounts, EngineInfo, ModelInfo
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.pool import KVPool
from roseinfer.kvcache.prefix import NoPrefixCache, PrefixCache
from roseinfer.models.config import weight_bytes
from roseinfer.models.mlp import skew
from roseinfer.request.limits import Limits
from roseinfer.request.params import RequestError, SamplingParams
from roseinfer.scheduler.cost import StepCosts
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler, StepResult
from roseinfer.scheduler.speculation import Speculation

log = logging.getLogger(__name__)


class Engine:
    """Owns the model, the KV cache and the scheduler. Not thread-safe: one thread calls it."""

    def __init__(self, config: EngineConfig, on_rank_end: Callable[[str], None] | None = None) -> None:
        """`on_rank_end` is called from another thread, with an explanation, when another rank's process ends
        or does not respond in time. Raises ConfigError where a setting cannot work, and RankError."""
        check_ranks(config)
        begun = time.monotonic()
        self.group: RankGroup | None = None
        if config.tensor_parallel_size > 1:
            self.group = RankGroup(config, on_rank_end)  # starts them: all ranks load at once
        loaded = load_model(config)
        model, device, dtype, shape = loaded.model, loaded.device, loaded.dtype, loaded.model.config
        config = replace(config, gpu_memory_utilization=resolve_memory_share(config, device))
        max_model_len = resolve_max_model_len(config, shape.max_positions)
        if shape.state_shape is not None:
            config = without_rewinding(config)
        draft = None
        if config.speculate not in (None, "ngram"):
            draft = load_draft_model(config, shape, max_model_len)
        loaded_at = time.monotonic()
        shapes = [each.kv_shape for each in (loaded, draft) if each is not None]
        blocks = num_blocks(config, shapes, device, max_model_len)
        pool = KVPool(loaded.kv_shape, blocks, config.block_size, device, config.max_active_requests + 1)
        self._allocator, self._mixtures = BlockAllocator(blocks), model.mixtures
        cache = PrefixCache if config.prefix_cache else NoPrefixCache
        self._prefixes = cache(self._allocator, config.block_size)
        running = Running(config.max_active_requests, max_model_len, config.block_size)
        policies = resolve_policies(config, device, weight_bytes(shape, dtype) if model.mixes else 0)
        mixed = captured_steps(policies, config.max_active_requests)
        limits = StepLimits(max_model_len, policies.max_batch_size, policies.prefill_max_tokens, mixed)
        if self.group is not None:
            self.group.connect(model.ranks, blocks, limits)
        drafts = None if draft is None else DraftModel.of(config, draft, pool, limits, policies)
        self._speculation = None
        if config.speculate is not None:
            self._speculation = Speculation(config.speculate_tokens, model=drafts)
        self._scheduler = Scheduler(
            running, self._allocator, self._prefixes, policies, shape.eos_token_ids,
            speculation=self._speculation,
        )  # fmt: skip
        choice = choose_runner(config, model, pool, dtype, limits, self.group)
        resolved = resolve_settings(config, device, policies, max_model_len, blocks)
        overlap, late = bool(resolved.overlap_schedule), bool(resolved.late_launch)
        self._loop = Loop(self._scheduler, running, choice.runner, overlap=overlap, late=late)
        state_bytes = 0 if shape.state_shape is None else shape.state_shape.bytes
        names = [str(kind).removeprefix("torch.") for kind in (dtype, loaded.cache_dtype)]
        self.info = EngineInfo(
            config=resolved,
            limits=Limits(shape.vocab_size, max_model_len, blocks * config.block_size),
            model=ModelInfo(names[0], names[1], model.fused, model.linear.name, state_bytes),
            runner=choice.info,
        )
        captured_at = time.monotonic()
        if config.warmup:
            warm_up(self)
        log.info(
            "weights took %.1f s, the KV cache and graphs %.1f s, warm-up %.1f s",
            loaded_at - begun, captured_at - loaded_at, time.monotonic() - captured_at,
        )  # fmt: skip

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def preemptions(self) -> int:
        """Preemptions since the start: a request loses its blocks and is recomputed later."""
        return self._scheduler.preemptions

    @property
    def kv_usage(self) -> float:
        """Fraction of the KV cache's blocks that are in use."""
        return 1 - self._allocator.num_free / self._allocator.num_blocks

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts admitted since the last flush of the prefix cache."""
        return self._prefixes.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Number of `prompt_tokens` that were in the prefix cache."""
        return self._prefixes.cached_tokens

    @property
    def expert_skew(self) -> float:
        """Imbalance of the experts: see `skew`."""
        return skew(self._mixtures)

    @property
    def drafts(self) -> DraftCounts | None:
        """Counts of drafted and accepted tokens since the start; None without `speculate`."""
        return None if self._speculation is None else self._speculation.counts

    @property
    def step_costs(self) -> StepCosts | None:
        """The learned cost of steps, where they are composed by it."""
        return self._scheduler.costs

    def watch(self, watcher: Callable[[Runner], Runner]) -> None:
        """Replace the runner by `watcher(runner)`. Call it when there is no work."""
        self._loop.runner = watcher(self._loop.runner)

    def profile_ranks(self, path: str | None, *, with_stack: bool = False) -> str | None:
        """Start a torch profile of the engine's other ranks, into files beside `path`. Without a path, stop
        it and wait until the files are written; returns an error message or None. Without other ranks this
        does nothing."""
        return None if self.group is None else self.group.profile(Profile(path, with_stack))

    def close(self) -> None:
        """End the engine's other processes. The engine cannot be used afterwards."""
        if self.group is not None:
            self.group.close()

    def flush_cache(self) -> None:
        """Empty the prefix cache. Running requests are not affected."""
        self._prefixes.flush()
        for mixture in self._mixtures:
            mixture.tokens.zero_()

    def forget_drafts(self, *, drafts: bool = True) -> None:
        """Count drafts anew, and what they gain and cost. `drafts`: whether there are any from now on."""
        if self._speculation is not None:
            self._speculation.forget(drafts=drafts)

    def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None:
        """Queue a prompt `[n]` of token ids. Raises RequestError when it can never be served."""
        self.info.limits.check(prompt, params.max_tokens)
        self.info.limits.check_ids(params)
        if params.prompt_logprobs is not None and not self.info.runner.prompt_logprobs:
            raise RequestError("logprobs of prompts need an engine without CUDA graphs", "prompt_logprobs")
        self.submit(request_id, prompt, params, time.monotonic())

    def submit(
        self,
        request_id: int,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        submitted: float,
        client: int = 0,
        choices: int = 1,
        salt: bytes = b"",
    ) -> None:
        """Queue `choices` requests for a prompt `[n]` of `client`, waiting since `submitted` (monotonic, s),
        with ids from `request_id` on: see Submit. The caller has checked their limits."""
        for choice in range(choices):
            id = request_id + choice
            self._scheduler.add(Request(id, prompt, params, submitted, prompt, client, choice, salt))

    def discard(self, request_id: int) -> bool:
        """Drop a request in any state. False if the id is unknown, or the request has ended."""
        return self._scheduler.discard(request_id)

    def step(self) -> StepResult | None:
        """Process one step, with at most one token for each running request, or several with `speculate`: see
        Loop. None when there is no work."""
        return self._loop.step()

    @property
    def launch_at(self) -> float:
        """When `step` is best called (monotonic, s), while it can be called at any time: see Loop."""
        return self._loop.launch_at

    def check_idle(self) -> None:
        """Raise AssertionError unless there is no work and every block is free."""
        if self.has_work:
            raise AssertionError("requests are in flight")
        self._allocator.check()
        self._prefixes.check()
        if self._allocator.num_free != self._allocator.num_blocks:
            raise AssertionError(f"{self._allocator.num_blocks - self._allocator.num_free} blocks leaked")
