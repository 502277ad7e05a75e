"""The requests of a run: what each cell sends, and what warms a server up before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.errors import UsageError
from harness.loadgen.load_plan import WireRequest
from harness.loadgen.system_limits import most_in_flight
from harness.schema.load import ClosedLoop, Load, TraceLoad
from harness.schema.results import TraceRecord
from harness.schema.settings import OnlineSettings
from harness.traces.catalog import load
from harness.traces.fit import fit
from harness.traces.trace import Trace
from harness.workload import PlannedRequest, closed_loop, open_loop, warmup

#: An open loop's load is taken to be as many requests as arrive in this time, at most MAX_WARMUP_BATCH.
WARMUP_WINDOW_S = 2.0
MAX_WARMUP_BATCH = 32
WARMUP_OUTPUT_TOKENS = 8
STREAM_GAP_S = 0.005
#: Above this size a wave's longest answer does not grow any more.
MAX_STAGGERED = 64


@dataclass(frozen=True)
class Workload:
    """What every engine is asked. `trace` is None in a closed loop."""

    settings: OnlineSettings
    vocab_size: int
    max_model_len: int
    trace: Trace | None
    record: TraceRecord

    @classmethod
    def make(cls, settings: OnlineSettings, vocab_size: int, max_model_len: int) -> Workload:
        """Read and fit the trace, or take the closed loop's shape.

        Raises:
            UsageError: The trace is not there or unreadable, or nothing fits the context.
        """
        if settings.concurrency is None:
            fitted = fit(load(settings.trace), settings.fit, max_model_len, settings.max_output_len)
            fitted = fitted.head(max(_count(fitted.trace, load, settings) for load in settings.loads))
            return cls(settings, vocab_size, max_model_len, fitted.trace, fitted.record())
        check_lengths(settings.input_len, settings.output_len, max_model_len)
        held = ", ".join(map(str, sorted(settings.concurrency)))
        sent = sum(map(settings.requests, settings.loads))
        record = TraceRecord(
            name="closed loop",
            origin=f"{held} request{'' if held == '1' else 's'} in flight, {settings.input_len} tokens in, "
            f"{settings.output_len} out",
            requests=sent,
            fit="none",
            input_tokens=sent * settings.input_len,
            output_tokens=sent * settings.output_len,
        )
        return cls(settings, vocab_size, max_model_len, None, record)

    def requests(self, load: Load, seed: int, first: int = 0, n: int | None = None) -> list[PlannedRequest]:
        """One cell's requests.

        Args:
            first, n: Of a closed loop, the prompts to leave out and how many to take, else the settings'.
        """
        s = self.settings
        if self.trace is not None:
            assert isinstance(load, TraceLoad)
            head = self.trace.head(_count(self.trace, load, s))
            return open_loop(head, load.scale, self.vocab_size, seed)
        count = s.requests(load) if n is None else n
        return closed_loop(count, s.input_len, s.output_len, self.vocab_size, seed, first)

    def warmup_waves(self, seed: int) -> list[list[PlannedRequest]]:
        """Requests to send before measuring, a wave at a time, all of a wave at once.

        `auto` makes waves of 1, 2, 4, … requests up to the load's concurrency. Prompts are as long as the
        load's at evenly spaced quantiles. Each answer is a token shorter than the one before, so that at
        whatever rate the engine takes prompts in, every batch size is met on the way up or down.
        """
        if self.settings.warmup == 0:
            return []
        if self.settings.warmup != "auto":
            return [self._wave(self.settings.warmup, seed)]
        batch = self.concurrency()
        sizes = [1 << i for i in range(batch.bit_length()) if 1 << i < batch] + [batch]
        return [self._wave(size, seed + i) for i, size in enumerate(sizes)]

    def concurrency(self) -> int:
        """Requests that the load may have in flight, as far as it is known in advance."""
        if self.settings.concurrency is not None:
            return max(
                min(load.concurrency, self.settings.requests(load))
                for load in self.settings.loads
                if isinstance(load, ClosedLoop)
            )
        assert self.trace is not None
        heaviest = min(self.settings.scales)
        due = [WireRequest(i, t * heaviest, b"") for i, t in enumerate(self.trace.arrival_s.tolist())]
        return min(most_in_flight(due, None, WARMUP_WINDOW_S), MAX_WARMUP_BATCH)

    def tokens_per_s(self) -> float:
        """Output tokens a second that the heaviest load asks for, as many chunks at most.

        In a closed loop the rate is not known in advance: one a stream each STREAM_GAP_S is assumed.
        """
        if self.trace is None:
            return self.concurrency() / STREAM_GAP_S
        arrival_s = self.trace.arrival_s
        seconds = float(arrival_s.max() - arrival_s.min()) * min(self.settings.scales)
        return float(self.trace.output_tokens.sum()) / max(seconds, 1.0)

    def _wave(self, size: int, seed: int) -> list[PlannedRequest]:
        if self.trace is None:
            inputs = [self.settings.input_len] * size
        else:
            quantiles = (np.arange(size) + 0.5) / size
            inputs = np.quantile(self.trace.input_tokens, quantiles, method="nearest").tolist()
        lengths = [self._lengths(length, i, size) for i, length in enumerate(inputs)]
        return warmup(lengths, self.vocab_size, seed)

    def _lengths(self, input_tokens: int, position: int, size: int) -> tuple[int, int]:
        """Input and output of one request of a wave; the context is kept, at the cost of the input."""
        behind = (size - 1 - position) * min(size, MAX_STAGGERED) // size
        output = min(WARMUP_OUTPUT_TOKENS + behind, self.max_model_len - 1)
        return min(input_tokens, self.max_model_len - output), output


def _count(trace: Trace, load: Load, settings: OnlineSettings) -> int:
    """Requests of the trace's head: `n`, or as many as arrive in the time that the cell is to last."""
    assert isinstance(load, TraceLoad)
    seconds = ((settings.settle or 0) + settings.measured_s) / load.scale
    return max(settings.n, int(np.searchsorted(trace.arrival_s - trace.arrival_s[:1], seconds)) + 1)


def check_lengths(input_len: int, output_len: int, context: int) -> None:
    """Raises UsageError where a request of so many tokens does not fit the context."""
    if input_len + output_len > context:
        raise UsageError(
            f"{input_len} + {output_len} tokens exceed the context of {context}",
            "lower --input-len or --output-len",
        )
