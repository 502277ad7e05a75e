"""`roseinfer bench-streaming`: requests over time through the engine in this process, without HTTP."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.profiler import nvtx_ranges
from roseinfer.request.params import SamplingParams
from roseinfer.tokenizer.detokenizer import Detokenizer
from roseinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from roseinfer.tracing.spans import span


@dataclass(frozen=True)
class StreamingLoad:
    """The requests, and when they are submitted."""

    prompt: str
    unique_prompts: bool
    pretok: bool
    tokenize_workers: int
    num_requests: int
    max_new_tokens: int
    stream_interval: int
    submit_interval_ms: float
    submit_schedule: Literal["absolute", "relative"]
    stop_on_eos: bool


@dataclass
class Timeline:
    """The times of one request: when it was due and received and when each token was shown (monotonic, s),
    and durations (s)."""

    due: float
    received: float
    prompt_tokens: int = 0
    tokenize: float = 0.0
    add: float = 0.0
    queue_wait: float = 0.0
    prefill: float = 0.0
    shown: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """All requests of one run; `submit_wall` and `wall`: seconds of submitting, and of the whole run."""

    requests: Sequence[Timeline]
    submit_wall: float
    wall: float

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def completion_tokens(self) -> int:
        return sum(len(request.shown) for request in self.requests)


class StreamingBench:
    """One engine for several runs. Raises ConfigError for a model without a tokenizer."""

    def __init__(self, config: EngineConfig, load: StreamingLoad) -> None:
        tokenizer = load_tokenizer(config.model)
        if tokenizer is None:
            raise ConfigError(f"{config.model} has no tokenizer; choose a --model that has one")
        self._tokenizer: Tokenizer = tokenizer
        self.engine, self._load = Engine(config), load
        span.mark_for_nsys()
        self._params = SamplingParams(load.max_new_tokens, ignore_eos=not load.stop_on_eos)

    def run(self) -> Run:
        """Submit all requests and stream their answers. An exception in either thread ends both and is
        raised."""
        load = self._load
        texts = [load.prompt] * load.num_requests
        if load.unique_prompts:
            texts = [f"{index}: {text}" for index, text in enumerate(texts)]
        token_ids = [self._tokenizer.encode(text) for text in texts] if load.pretok else None
        arrived: queue.SimpleQueue[tuple[int, NDArray[np.int32]] | None] = queue.SimpleQueue()
        timelines: list[Timeline] = []
        failed = threading.Event()
        start = time.monotonic()
        with ThreadPoolExecutor(1, "submit") as thread:
            submitting = thread.submit(self._submit, texts, token_ids, arrived, timelines, failed)
            try:
                with nvtx_ranges():
                    self.serve(arrived, timelines)
            except BaseException:
                failed.set()
                raise
        return Run(timelines, submitting.result(), time.monotonic() - start)

    def _submit(
        self,
        texts: list[str],
        token_ids: list[NDArray[np.int32]] | None,
        arrived: queue.SimpleQueue[tuple[int, NDArray[np.int32]] | None],
        timelines: list[Timeline],
        failed: threading.Event,
    ) -> float:
        """Submit all requests. Returns the seconds that took. The last item in `arrived` is None, also where
        this raises."""
        load, interval = self._load, self._load.submit_interval_ms / 1e3

        def tokenize(index: int) -> None:
            start = time.monotonic()
            with span("roseinfer.tokenize"):
                prompt = token_ids[index] if token_ids is not None else self._tokenizer.encode(texts[index])
            timelines[index].tokenize = time.monotonic() - start
            arrived.put((index, prompt))

        try:
            with ThreadPoolExecutor(max(load.tokenize_workers, 1)) as pool:
                tokenizing: list[Future[None]] = []
                start = last = time.monotonic()
                for index in range(load.num_requests):
                    due = start + index * interval if load.submit_schedule == "absolute" else last
                    if failed.wait(max(0.0, due - time.monotonic())):
                        break
                    timelines.append(Timeline(due, time.monotonic()))
                    if load.tokenize_workers and token_ids is None:
                        tokenizing.append(pool.submit(tokenize, index))
                    else:
                        tokenize(index)
                    last = time.monotonic() + interval
                wall = time.monotonic() - start
            for future in tokenizing:
                future.result()
            return wall
        finally:
            arrived.put(None)

    def serve(
        self, arrived: queue.SimpleQueue[tuple[int, NDArray[np.int32]] | None], timelines: list[Timeline]
    ) -> None:
        engine, coming = self.engine, True
        texts: dict[int, Detokenizer] = {}
        pending = dict.fromkeys(range(self._load.num_requests), 0)
        while coming or engine.has_work:
            while coming:
                wait = max(0.0, engine.launch_at - time.monotonic()) if engine.has_work else None
                try:
                    item = arrived.get(timeout=wait)
                except queue.Empty:
                    break
                if item is None:
                    coming = False
                    break
                index, prompt = item
                timeline, start = timelines[index], time.monotonic()
                engine.add(index, prompt, self._params)
                timeline.prompt_tokens = len(prompt)
                timeline.add = time.monotonic() - start
                texts[index] = self._tokenizer.detokenizer()
            time.sleep(max(0.0, engine.launch_at - time.monotonic()))
            step = engine.step()
            if step is None:
                continue
            ended = {end.id: end for end in step.finished}
            for index, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True):
                with span("roseinfer.detokenize"):
                    texts[index].push(token)
                pending[index] += 1
                shown, end = timelines[index].shown, ended.get(index)
                if not shown or pending[index] >= self._load.stream_interval or end is not None:
                    shown += [time.monotonic()] * pending[index]
                    pending[index] = 0
                if end is not None:
                    timelines[index].queue_wait, timelines[index].prefill = end.queue_wait, end.prefill
