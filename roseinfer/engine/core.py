"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.choose import choose_runner
from roseinfer.engine.graphs import LARGE_ROWS, MixedSteps
from roseinfer.engine.load import LoadedModel, check_ranks, load_model
from roseinfer.engine.loop import Loop
from roseinfer.engine.ranks.group import RankGroup
from roseinfer.engine.ranks.messages import Profile, StepLimits
from roseinfer.engine.resolve import resolve_memory_share, resolve_policies, resolve_spin_ms, wanted_blocks
from roseinfer.engine.runner import Runner
from roseinfer.engine.warmup import warm_up
from roseinfer.info import EngineInfo, ModelInfo
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.pool import KVPool
from roseinfer.kvcache.prefix import NoPrefixCache, PrefixCache
from roseinfer.models.config import weight_bytes
from roseinfer.request.limits import Limits
from roseinfer.request.params import RequestError, SamplingParams
from roseinfer.scheduler.policies import FillUp, Policies, TakeAlong, decode_first
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler, StepResult

#: Fraction of the free memory that the KV cache takes when `kv_tokens` is not given.
KV_MEMORY_SHARE = {"cuda": 0.8, "cpu": 0.1}
#: The smallest `max_model_len`: warm-up generates two tokens after a prompt of one.
SHORTEST = 3


class Engine:
    """Owns the model, the KV cache and the scheduler. Not thread-safe: one thread calls it."""

    def __init__(self, config: EngineConfig, on_rank_end: Callable[[str], None] | None = None) -> None:
        """`on_rank_end` is called from another thread, with an explanation, when another rank's process ends
        or does not respond in time. Raises ConfigError where a setting cannot work, and RankError."""
        check_ranks(config)
        self._group: RankGroup | None = None
        if config.tensor_parallel_size > 1:
            self._group = RankGroup(config, on_rank_end)  # starts them: all ranks load at once
        loaded = load_model(config)
        model, device, dtype, shape = loaded.model, loaded.device, loaded.dtype, loaded.model.config
        config = replace(config, gpu_memory_utilization=resolve_memory_share(config, device))
        max_model_len = _max_model_len(config, shape.max_positions)
        num_blocks = _num_blocks(config, loaded, max_model_len)
        pool = KVPool(loaded.kv_shape, num_blocks, config.block_size, device)
        self._allocator = BlockAllocator(num_blocks)
        cache = PrefixCache if config.prefix_cache else NoPrefixCache
        self._prefixes = cache(self._allocator, config.block_size)
        running = Running(config.max_active_requests, max_model_len, config.block_size)
        policies = resolve_policies(config, device, weight_bytes(shape, dtype) if model.mixes else 0)
        limits = StepLimits(
            max_model_len,
            policies.max_batch_size,
            policies.prefill_max_tokens,
            _mixed_steps(policies, config.max_active_requests),
        )
        if self._group is not None:
            self._group.connect(model.ranks, num_blocks, limits)
        self._scheduler = Scheduler(running, self._allocator, self._prefixes, policies, shape.eos_token_ids)
        chosen = choose_runner(config, model, pool, dtype, limits, self._group)
        resolved = _resolved(config, device, policies, max_model_len, num_blocks)
        self._loop = Loop(
            self._scheduler,
            running,
            chosen.runner,
            overlap=bool(resolved.overlap_schedule),
            late=bool(resolved.late_launch),
        )
        self.info = EngineInfo(
            config=resolved,
            limits=Limits(shape.vocab_size, max_model_len, num_blocks * config.block_size),
            model=ModelInfo(_name(dtype), _name(loaded.cache_dtype), model.fused, model.linear.name),
            runner=chosen.info,
        )
        if config.warmup:
            warm_up(self)

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
        """How many of `prompt_tokens` were in the prefix cache."""
        return self._prefixes.cached_tokens

    def watch(self, watcher: Callable[[Runner], Runner]) -> None:
        """Replace the runner by `watcher(runner)`. Call it when there is no work."""
        self._loop.runner = watcher(self._loop.runner)

    def profile_ranks(self, path: str | None, *, with_stack: bool = False) -> str | None:
        """Start a torch profile of the engine's other ranks, into files beside `path`. Without a path, stop
        it and wait until the files are written; returns an error message or None. Without other ranks this
        does nothing."""
        return None if self._group is None else self._group.profile(Profile(path, with_stack))

    def close(self) -> None:
        """End the engine's other processes. The engine cannot be used afterwards."""
        if self._group is not None:
            self._group.close()

    def flush_cache(self) -> None:
        """Empty the prefix cache. Running requests are not affected."""
        self._prefixes.flush()

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
    ) -> None:
        """Queue a prompt `[n]` of `client`, waiting since `submitted` (monotonic, s). The caller has checked
        its limits."""
        self._scheduler.add(Request(request_id, prompt, params, submitted, prompt, client))

    def discard(self, request_id: int) -> bool:
        """Drop a request in any state. False if the id is unknown, or the request has ended."""
        return self._scheduler.discard(request_id)

    def step(self) -> StepResult | None:
        """Process one step, with at most one token for each running request: see Loop. None when there is no
        work."""
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _resolved(
    config: EngineConfig, device: torch.device, policies: Policies, max_model_len: int, num_blocks: int
) -> EngineConfig:
    """The settings without `auto`, and without None for what has a default. What has no effect is None."""
    on_gpu = device.type == "cuda"
    overlap = on_gpu if config.overlap_schedule is None else config.overlap_schedule
    late = on_gpu and config.tensor_parallel_size == 1 if config.late_launch is None else config.late_launch
    return replace(
        config,
        device="cuda" if on_gpu else "cpu",
        max_model_len=max_model_len,
        kv_tokens=num_blocks * config.block_size,
        max_batch_size=policies.max_batch_size,
        prefill_max_tokens=policies.prefill_max_tokens,
        chunked_prefill_size=_chunk(config, policies),
        mixed_steps=_mixes(policies),
        overlap_schedule=overlap,
        late_launch=late and overlap,
        threads=config.tensor_parallel_size * torch.get_num_threads(),
        spin_ms=resolve_spin_ms(config, device),
    )


def _mixes(policies: Policies) -> bool:
    """Whether a step may hold both prefill and decode rows."""
    return policies.composition is decode_first or isinstance(policies.composition, FillUp | TakeAlong)


def _chunk(config: EngineConfig, policies: Policies) -> int | None:
    """The most tokens of one prompt in a step; None where prompts are not chunked."""
    how = policies.composition
    if isinstance(how, FillUp):
        return min(policies.prefill_max_tokens, how.most)
    return config.chunked_prefill_size


def _mixed_steps(policies: Policies, capacity: int) -> MixedSteps:
    """The mixed prefill-decode steps to capture as CUDA graphs."""
    how = policies.composition
    if isinstance(how, FillUp):
        return MixedSteps(min(LARGE_ROWS, how.most), cut=True)
    if isinstance(how, TakeAlong) and capacity >= how.requests:
        return MixedSteps(how.rows)
    return MixedSteps()


def _max_model_len(config: EngineConfig, max_positions: int) -> int:
    """The context in tokens, of a model with `max_positions`. Raises ConfigError."""
    length = config.max_model_len or max_positions
    if length > max_positions:
        raise ConfigError(f"--max-model-len {length} is above the model's {max_positions} positions")
    if length < SHORTEST:
        raise ConfigError(f"--max-model-len {length} is too small: give {SHORTEST} or more")
    return length


def _num_blocks(config: EngineConfig, loaded: LoadedModel, max_model_len: int) -> int:
    """Blocks of the KV cache: as configured, else as many as can be used within the memory that it may take.
    Raises ConfigError for too few."""
    blocks, size = wanted_blocks(config, max_model_len), config.block_size
    if config.kv_tokens is None:
        sharing = 1 if loaded.device.type == "cuda" else config.tensor_parallel_size  # ranks in this memory
        block_bytes = sharing * size * loaded.kv_shape.bytes_per_token
        blocks = min(blocks, max(0, _kv_bytes(config, loaded.device)) // block_bytes)
    if blocks * size < min(max_model_len, max(SHORTEST, 2 * size)):
        larger = f"--kv-tokens {max_model_len}"
        if config.gpu_memory_utilization is not None:
            larger += " or a larger --gpu-memory-utilization"
        used = _memory_in_use(loaded.device)
        raise ConfigError(f"{blocks * size} tokens of KV cache are too few{used}; give {larger}")
    return blocks


def _memory_in_use(device: torch.device) -> str:
    """How much of a GPU's memory is taken by PyTorch in this process, and how much else, for an error."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    sizes = (f"{size / 2**30:.1f}" for size in (total, own, total - free - own))
    return ": of {} GiB of the GPU {} are this model's, {} the CUDA context's and other processes'".format(
        *sizes
    )


def _kv_bytes(config: EngineConfig, device: torch.device) -> int:
    """What the KV cache may take of the memory that is free once the weights are loaded."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available * KV_MEMORY_SHARE["cpu"])
    share = config.gpu_memory_utilization
    free, total = torch.cuda.mem_get_info(device)
    return int(free * KV_MEMORY_SHARE["cuda"] if share is None else free - (1 - share) * total)
