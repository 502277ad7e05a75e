"""Fits a trace into a model's context: longer requests are dropped, clipped or scaled, and counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.schema.online_settings import Fit
from harness.schema.run_info import TraceRecord
from harness.traces.trace import Trace

#: Tokens of the context that input and output leave free. Engines reserve space for a BOS token, some end an
#: answer one token before the context is full, and published figures of these traces use 1,015 of 1,024.
RESERVED_TOKENS = 9
#: The share of requests that must fit after scaling all lengths by one factor.
SCALED_SHARE = 0.99


def room(max_model_len: int) -> int:
    """Return the most tokens of a request, input and output together. Raises UsageError below two."""
    if max_model_len - RESERVED_TOKENS < 2:
        raise UsageError(
            f"a context of {max_model_len} tokens is too short for a request",
            f"use --max-model-len {RESERVED_TOKENS + 2} or more",
        )
    return max_model_len - RESERVED_TOKENS


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trace that fits, and what it took. `rows` are positions in the trace before, `altered` marks the
    requests whose lengths were changed; both have one entry for each request that was kept."""

    trace: Trace
    rule: Fit
    rows: NDArray[np.int64]
    altered: NDArray[np.bool_]
    considered: int

    @property
    def dropped(self) -> int:
        """Requests of those considered that are not in the trace any more."""
        return self.considered - len(self.rows)

    @property
    def changed(self) -> int:
        """Requests whose input or output is of another length than in the original."""
        return int(self.altered.sum())

    def head(self, n: int) -> Self:
        """Return the first `n` requests; considered are the rows of the original up to the last of them."""
        if n >= len(self.rows):
            return self
        return replace(
            self,
            trace=self.trace.head(n),
            rows=self.rows[:n],
            altered=self.altered[:n],
            considered=int(self.rows[n - 1]) + 1 if n else 0,
        )

    def record(self) -> TraceRecord:
        """Return the trace as the result files record it."""
        trace = self.trace
        return TraceRecord(
            **trace.about,
            requests=len(trace),
            fit=self.rule,
            dropped=self.dropped,
            changed=self.changed,
            input_tokens=int(trace.input_tokens.sum()),
            output_tokens=int(trace.output_tokens.sum()),
        )


def fit(trace: Trace, rule: Fit, max_model_len: int, max_output_len: int | None = None) -> Fitted:
    """Make every request fit `room(max_model_len)` tokens, with at least one input and one output token.

    `drop` leaves out requests that are too long. `clip` cuts the output to `max_output_len`, then the input
    to the rest. `scale` multiplies all lengths by one factor with which 99 % of the requests fit, and drops
    the rest. Every rule drops requests without input or output. Raises UsageError if no request is left,
    or no token of a block."""
    limit = room(max_model_len)
    usable = (trace.input_tokens > 0) & (trace.output_tokens > 0)
    before = trace.take(np.flatnonzero(usable))
    if rule == "clip":
        after = _clip(before, limit, max_output_len)
    elif rule == "scale":
        after = _scale(before, limit)
    else:
        after = before
    keep = after.input_tokens + after.output_tokens <= limit
    rows = np.flatnonzero(usable)[keep]
    if not rows.size:
        raise UsageError(
            f"no request of trace {trace.name} fits a context of {max_model_len} tokens with --fit {rule}",
            "use --fit clip or --fit scale, or a model with a longer context",
        )
    altered = (after.input_tokens != before.input_tokens) | (after.output_tokens != before.output_tokens)
    return Fitted(after.take(np.flatnonzero(keep)), rule, rows, altered[keep], considered=len(trace))


def _clip(trace: Trace, limit: int, max_output_len: int | None) -> Trace:
    longest = min(max_output_len or limit, limit - 1)
    output = np.minimum(trace.output_tokens, longest)
    return _resize(trace, np.minimum(trace.input_tokens, limit - output), output, trace.block_size)


def _scale(trace: Trace, limit: int) -> Trace:
    """Scale all lengths by one factor. With blocks, it is rounded down until a block is a whole number of
    tokens, so that shared prefixes stay shared. Raises UsageError where that is none."""
    total = trace.input_tokens + trace.output_tokens
    if not total.size:
        return trace
    factor = min(1.0, limit / float(np.percentile(total, 100 * SCALED_SHARE, method="inverted_cdf")))
    block_size = trace.block_size
    if block_size is not None:
        scaled_block = int(block_size * factor)
        if not scaled_block:
            raise UsageError(
                f"trace {trace.name} shares blocks of {block_size} tokens, and --fit scale would leave "
                f"{block_size * factor:.2g} of each",
                "use --fit clip, or a model with a longer context",
            )
        factor, block_size = scaled_block / block_size, scaled_block
    output = np.maximum(1, np.rint(trace.output_tokens * factor).astype(np.int64))
    input = np.maximum(1, np.rint(trace.input_tokens * factor).astype(np.int64))
    over_by_rounding = (total * factor <= limit) & (input + output > limit)
    output = np.where(over_by_rounding, np.minimum(output, limit - 1), output)
    return _resize(trace, np.where(over_by_rounding, limit - output, input), output, block_size)


def _resize(
    trace: Trace, input: NDArray[np.int64], output: NDArray[np.int64], block_size: int | None
) -> Trace:
    """Return the requests with new lengths, (n,) tokens each; blocks are cut to the input."""
    blocks = trace.blocks
    if blocks is not None and block_size is not None:
        needed = (-(-input // block_size)).tolist()
        blocks = tuple(request[:count] for request, count in zip(blocks, needed, strict=True))
    return replace(trace, input_tokens=input, output_tokens=output, blocks=blocks, block_size=block_size)
