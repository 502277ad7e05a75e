"""The requests of a run: what each cell sends, and what warms a server up before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from harness.datasets.agent_formats import is_agent_jobs, read_agent_jobs
from harness.datasets.catalog import load_dataset
from harness.errors import UsageError
from harness.loadgen.load_plan import WireRequest
from harness.loadgen.system_limits import most_in_flight
from harness.made import Made, made
from harness.models.text_tokens import whole_ends
from harness.runs.seeds import shape_seeds
from harness.schema.load import ClosedLoop, Load, Ramp, RequestRate, TraceLoad, heaviest
from harness.schema.load_settings import Uniform
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import PREFIX_BLOCK_TOKENS
from harness.schema.run_info import TraceRecord
from harness.traces.catalog import load
from harness.traces.fit import Fitted, fit, room
from harness.traces.servegen import CITATION, Mixture, read_mixture
from harness.traces.trace import Trace
from harness.workload import PlannedRequest, open_loop, warmup
from harness.workload.agent_content import AgentContent
from harness.workload.arrivals import arrival_times
from harness.workload.content import Content, SyntheticContent, longest
from harness.workload.dataset_content import MAX_OUTPUT, DatasetContent
from harness.workload.mixture import mixture_requests
from harness.workload.prompt_ends import end_whole

#: An open loop's load is taken to be as many requests as arrive in this time, at most MAX_WARMUP_BATCH.
WARMUP_WINDOW_S = 2.0
MAX_WARMUP_BATCH = 32
WARMUP_OUTPUT_TOKENS = 8
STREAM_GAP_S = 0.005
#: Above this size a wave's longest answer does not grow any more.
MAX_STAGGERED = 64


@dataclass(frozen=True)
class Workload:
    """What every engine is asked: requests of a trace or a mixture, else of `content`."""

    settings: OnlineSettings
    vocab_size: int
    max_model_len: int
    record: TraceRecord
    trace: Trace | None = None
    mixture: Mixture | None = None
    content: Content | None = None
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
            UsageError: The trace is not there or unreadable, or nothing fits the context.
        """
        ends = None if tokenizer is None else whole_ends(tokenizer)
        if isinstance(settings.loads[0], TraceLoad):
            head = load(settings.trace, partial(_is_enough, settings, max_model_len))
            fitted = fit(head, settings.fit, max_model_len, settings.max_output_len)
            fitted = fitted.head(_most(fitted.trace, settings))
            return cls(settings, vocab_size, max_model_len, fitted.record(), fitted.trace, ends=ends)
        empty = TraceRecord(name="", origin="", requests=0, fit="none")
        if settings.mixture is not None:
            mixture = read_mixture(settings.mixture)
            if settings.fit == "drop":
                mixture = mixture.within(room(max_model_len))
            workload = cls(settings, vocab_size, max_model_len, empty, mixture=mixture, ends=ends)
            return replace(workload, record=workload._mixture_record(mixture))
        content: Content
        if settings.dataset is not None and is_agent_jobs(settings.dataset):
            content = AgentContent(
                read_agent_jobs(settings.dataset), vocab_size, max_model_len, settings.max_output_len
            )
        elif settings.dataset is not None:
            content = DatasetContent(
                load_dataset(settings.dataset),
                tokenizer,
                max_model_len,
                settings.ignore_eos,
                settings.max_output_len or MAX_OUTPUT,
                settings.turns,
            )
        else:
            check_lengths(settings.input_len, settings.output_len, max_model_len)
            content = SyntheticContent(settings.input_len, settings.output_len, vocab_size)
        workload = cls(settings, vocab_size, max_model_len, empty, content=content, ends=ends)
        return replace(workload, record=workload._content_record())

    def requests(
        self, load: Load, seed: int, shape_seed: int, first: int = 0, n: int | None = None
    ) -> Sequence[PlannedRequest]:
        """One cell's requests.

        Args:
            seed: Of the token ids of its prompts.
            shape_seed: Of its times, lengths and order, which are the same for every engine.
            first, n: Of a closed loop, the prompts to leave out and how many to take, else the settings'.
        """
        return self._whole(self._planned(load, seed, shape_seed, first, n))

    def _planned(
        self, load: Load, seed: int, shape_seed: int, first: int, n: int | None
    ) -> Sequence[PlannedRequest]:
        match load:
            case TraceLoad():
                assert self.trace is not None
                head = self.trace.head(_count(self.trace, load, self.settings))
                return open_loop(head, load.scale, self.vocab_size, seed)
            case ClosedLoop():
                count = self.settings.requests(load) if n is None else n
                return self._taken(count, seed, shape_seed, first)
            case RequestRate(arrivals="clients"):
                return open_loop(self._fitted(load, shape_seed).trace, 1.0, self.vocab_size, seed)
            case RequestRate() | Ramp():
                times = self._arrivals(load, shape_seed)
                asked = self._taken(len(times), seed, shape_seed)
                if isinstance(asked, Made):  # none of them follows another
                    return made(len(asked), lambda i: replace(asked[i], t_sched_s=float(times[i])))
                due = iter(times.tolist())
                return [r if r.think_s is not None else replace(r, t_sched_s=next(due)) for r in asked]

    def is_distinct(self, n: int) -> bool:
        """Whether no two of `n` prompts begin with the same block, as good as surely."""
        synthetic = isinstance(self.content, SyntheticContent)
        own = synthetic or (self.trace is not None and self.trace.blocks is None)
        return own and n**2 < 1e-12 * (self.vocab_size - 1) ** PREFIX_BLOCK_TOKENS

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
        batch = self.concurrency() if in_flight is None else in_flight
        sizes = [1 << i for i in range(batch.bit_length()) if 1 << i < batch] + [batch]
        return [self._wave(size, seed + i) for i, size in enumerate(sizes) if size > done]

    def concurrency(self) -> int:
        """Requests that the load may have in flight, as far as it is known in advance."""
        held = [load for load in self.settings.loads if isinstance(load, ClosedLoop)]
        if held:
            return max(min(load.concurrency, self.settings.requests(load)) for load in held)
        due = [WireRequest(i, t, b"") for i, t in enumerate(self._times())]
        return min(most_in_flight(due, None, WARMUP_WINDOW_S), MAX_WARMUP_BATCH)

    def tokens_per_s(self) -> float:
        """Output tokens a second that the heaviest load asks for, as many chunks at most.

        In a closed loop the rate is not known in advance: each request in flight is taken to get a token
        every STREAM_GAP_S.
        """
        if isinstance(self.settings.loads[0], ClosedLoop):
            return self.concurrency() / STREAM_GAP_S
        return self.requests_per_s() * self.record.output_tokens / max(1, self.record.requests)

    def requests_per_s(self) -> float:
        """Requests a second of the heaviest load; 0 of a closed loop: its rate depends on the engine."""
        if isinstance(self.settings.loads[0], ClosedLoop):
            return 0.0
        times = self._times()
        return len(times) / max(times[-1] - times[0], 1.0)

    def _whole(self, requests: Sequence[PlannedRequest]) -> Sequence[PlannedRequest]:
        """The requests, random prompts of a known tokenizer with a whole character at their ends."""
        return requests if self.ends is None else end_whole(requests, self.ends)

    @property
    def _content(self) -> Content:
        assert self.content is not None
        return self.content

    def _taken(self, n: int, seed: int, shape_seed: int, first: int = 0) -> Sequence[PlannedRequest]:
        """Requests of the content; no turn waits longer than the settings allow."""
        asked, most = self._content.take(n, seed, shape_seed, first), self.settings.max_think_s
        if most is None or isinstance(asked, Made):
            return asked
        return [r if r.think_s is None else replace(r, think_s=min(r.think_s, most)) for r in asked]

    @property
    def _seconds(self) -> float:
        """How long a cell is to last, the time to settle included."""
        return (self.settings.settle or 0.0) + self.settings.measured_s

    def _arrivals(self, load: RequestRate | Ramp, shape_seed: int) -> NDArray[np.float64]:
        return arrival_times(load, shape_seed, self.settings.requests(load), self._seconds)

    def _sent(self, load: Load, shape_seed: int) -> int:
        """How many requests a load of synthetic ones has."""
        if isinstance(load, RequestRate | Ramp):
            return len(self._arrivals(load, shape_seed))
        return self.settings.requests(load)

    def _times(self) -> list[float]:
        """When the requests of the heaviest open loop are due, in its first repeat."""
        load = heaviest(self.settings.loads)
        seed = shape_seeds(self.settings, 0)[self.settings.loads.index(load)]
        match load:
            case TraceLoad():
                assert self.trace is not None
                times = self.trace.arrival_s * load.scale
            case RequestRate(arrivals="clients"):
                times = self._fitted(load, seed).trace.arrival_s
            case _:
                assert isinstance(load, RequestRate | Ramp)
                times = self._arrivals(load, seed)
        return [float(t) for t in times]

    def _fitted(self, load: RequestRate, shape_seed: int) -> Fitted:
        """A mixture's requests at a rate. For the few that --fit scale drops, more are drawn."""
        assert self.mixture is not None
        n, seconds, drawn_each = self.settings.requests(load), self._seconds, 1.0
        while True:
            rate, count = load.req_per_s * drawn_each, ceil(n * drawn_each)
            drawn = mixture_requests(self.mixture, rate, shape_seed, count, seconds)
            fitted = fit(drawn, self.settings.fit, self.max_model_len, self.settings.max_output_len)
            kept = len(fitted.trace)
            if kept == len(drawn) or (drawn_each > 1 and kept >= n):
                in_time = int(np.searchsorted(fitted.trace.arrival_s, seconds, side="right"))
                return fitted.head(max(n, in_time))
            drawn_each = max(drawn_each + (1 / n if kept < n else 0), len(drawn) / kept)

    def _mixture_record(self, mixture: Mixture) -> TraceRecord:
        seeds = shape_seeds(self.settings, 0)
        parts = [
            self._fitted(load, seed).record()
            for load, seed in zip(self.settings.loads, seeds, strict=True)
            if isinstance(load, RequestRate)
        ]
        names = ("requests", "dropped", "changed", "input_tokens", "output_tokens")
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        sums["dropped"] += round(sums["requests"] * mixture.dropped_each)
        note = "drawn from published statistics of clients, not recorded"
        return parts[0].model_copy(update=sums | {"citation": CITATION, "note": note})

    def _content_record(self) -> TraceRecord:
        s = self.settings
        drawn = [
            self._content.lengths(self._sent(load, seed), seed)
            for load, seed in zip(s.loads, shape_seeds(s, 0), strict=True)
        ]
        what = self._content.what
        if isinstance(s.loads[0], ClosedLoop):
            *fewer, most = (str(load.value) for load in s.loads)
            held = f"{', '.join(fewer)} and {most}" if fewer else most
            name, origin = "closed loop", f"{held} request{'' if held == '1' else 's'} in flight, {what}"
        else:
            name, origin = "synthetic", f"{'; '.join(map(str, s.loads))}, {what}"
        return TraceRecord(
            **{"name": name} | self._content.about,
            origin=origin,
            dropped=(dropped := self._content.dropped),
            requests=sum(len(inputs) for inputs, _ in drawn),
            fit="drop" if dropped else "none",
            input_tokens=sum(int(inputs.sum()) for inputs, _ in drawn),
            output_tokens=sum(int(outputs.sum()) for _, outputs in drawn),
            prompts=self._content.prompts,
        )

    def _wave(self, size: int, seed: int) -> Sequence[PlannedRequest]:
        if self.content is not None:
            inputs = self.content.input_lengths(size)
        else:
            trace = self.trace
            if trace is None:
                load = heaviest(self.settings.loads)
                assert isinstance(load, RequestRate)
                trace = self._fitted(load, shape_seeds(self.settings, 0)[-1]).trace
            quantiles = (np.arange(size) + 0.5) / size
            inputs = np.quantile(trace.input_tokens, quantiles, method="nearest").tolist()
        lengths = [self._lengths(length, i, size) for i, length in enumerate(inputs)]
        return self._whole(warmup(lengths, self.vocab_size, seed))

    def _lengths(self, input_tokens: int, position: int, size: int) -> tuple[int, int]:
        """Input and output of one request of a wave; the context is kept, at the cost of the input."""
        behind = (size - 1 - position) * min(size, MAX_STAGGERED) // size
        output = min(WARMUP_OUTPUT_TOKENS + behind, self.max_model_len - 1)
        return min(input_tokens, self.max_model_len - output), output


def _is_enough(settings: OnlineSettings, max_model_len: int, head: Trace) -> bool:
    """Whether no load needs more of a trace than this head; one factor for all lengths needs all of them."""
    if settings.fit == "scale":
        return False
    try:
        fitted = fit(head, settings.fit, max_model_len, settings.max_output_len).trace
    except UsageError:
        return False
    return _most(fitted, settings) < len(fitted)


def _most(trace: Trace, settings: OnlineSettings) -> int:
    return max(_count(trace, load, settings) for load in settings.loads)


def _count(trace: Trace, load: Load, settings: OnlineSettings) -> int:
    """Requests of the trace's head: `n`, or as many as arrive in the time that the cell is to last."""
    assert isinstance(load, TraceLoad)
    seconds = ((settings.settle or 0) + settings.measured_s) / load.scale
    return max(settings.n, int(np.searchsorted(trace.arrival_s - trace.arrival_s[:1], seconds)) + 1)


def check_lengths(input_len: int | Uniform, output_len: int | Uniform, context: int) -> None:
    """Raises UsageError where a request of so many tokens does not fit the context."""
    if longest(input_len, output_len) > context:
        raise UsageError(
            f"{input_len} + {output_len} tokens exceed the context of {context}",
            "lower --input-len or --output-len",
        )
