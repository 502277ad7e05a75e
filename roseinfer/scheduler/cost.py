"""A linear cost model of steps, learned while they run: device time as a function of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import Batch

#: How many steps of each kind, with prompts and without, the model is fitted to; after how many new ones it
#: is fitted again; and how many of each kind it needs.
RECENT, NEW, FEWEST = 256, 64, 8
#: Tokens of steps that take no time.
UNLIMITED = 2**31
#: A step that takes longer than expected by this factor counts as if it took that long: a pause of the host
#: says little.
_LONGEST = 3.0


@dataclass(frozen=True)
class StepCost:
    """Seconds on the device, linear in a step's contents.

    Args:
        prompts: for a step with prefill.
        prompt_token: for each prompt token.
        prompt_pair: for each pair of a prompt token and a token that it attends to.
        decode: for a step with decode.
        decode_row: for each decoding request.
        decode_context: for each cached token that those attend to.
        shared: less for a step with both, where they read the weights once.
    """

    prompts: float
    prompt_token: float
    prompt_pair: float
    decode: float
    decode_row: float
    decode_context: float
    shared: float = 0.0

    def seconds(self, batch: Batch) -> float:
        """The time of one step."""
        parts: tuple[float, ...] = astuple(self)
        return sum(a * b for a, b in zip(parts, contents(batch), strict=True))


def contents(batch: Batch) -> tuple[float, ...]:
    """The contents of a step, by which the fields of StepCost are multiplied."""
    rows = len(batch.decode_lengths)
    decode = (1.0, rows, float(batch.decode_lengths.sum())) if rows else (0.0, 0.0, 0.0)
    if not batch.segments:
        return 0.0, 0.0, 0.0, *decode, 0.0
    tokens = sum(segment.count for segment in batch.segments)
    pairs = sum(s.count * s.context + s.count * (s.count + 1) / 2 for s in batch.segments)
    return 1.0, tokens, pairs, *decode, -decode[0]


def fit(
    steps: Sequence[tuple[float, ...]] | NDArray[np.float64], seconds: Sequence[float] | NDArray[np.float64]
) -> StepCost:
    """Fit the cost to measured steps, by least squares of the relative errors. No cost is negative: those
    that would be are left out, one after the other."""
    measured = np.asarray(steps, dtype=np.float64) / np.asarray(seconds)[:, None]
    size = np.abs(measured).max(axis=0)
    used, parts = np.flatnonzero(size), np.zeros(len(size))
    while len(used):
        costs = np.linalg.lstsq(measured[:, used] / size[used], np.ones(len(measured)), rcond=1e-9)[0]
        if costs.min() >= 0:
            parts[used] = costs / size[used]
            break
        used = np.delete(used, costs.argmin())
    return StepCost(*parts.tolist())


class StepCosts:
    """The cost model of an engine's own recent steps.

    Until there are FEWEST steps of each kind, `cost` is None, and they are expected to take no time. `error`:
    the median of the relative errors with which the model expected the last steps, before it was fitted to
    them.
    """

    def __init__(self) -> None:
        self.cost: StepCost | None = None
        self.error = 0.0
        self._steps, self._seconds = np.zeros((2, RECENT, 7)), np.ones((2, RECENT))
        self._noted, self._fitted = [0, 0], 0

    def know(self, cost: StepCost, attended: float = 0.0) -> None:
        """Take `cost` until there are new steps; `attended`: tokens that a prompt token attends to."""
        self.cost, self._token = cost, cost.prompt_token + cost.prompt_pair * attended

    def note(self, batch: Batch, seconds: float) -> None:
        """A step has taken `seconds` on the device. Of those that verify drafts nothing is learned."""
        if batch.verifying or seconds <= 0:
            return
        kind, step = int(len(batch.segments) > 0), contents(batch)
        at = self._noted[kind] % RECENT
        self._steps[kind, at], self._seconds[kind, at] = step, seconds
        self._noted[kind] += 1

    def update(self) -> None:
        """Fit the model again where enough steps are new, which takes half a millisecond."""
        new = sum(self._noted) - self._fitted
        if min(self._noted) < FEWEST or new < (NEW if self.cost else 1):
            return
        counts = [min(noted, RECENT) for noted in self._noted]
        steps, seconds = (
            np.concatenate([kind[:count] for kind, count in zip(all_, counts, strict=True)])
            for all_ in (self._steps, self._seconds)
        )
        if self.cost is not None:
            expected = steps @ np.array(astuple(self.cost))
            seconds = np.minimum(seconds, np.maximum(_LONGEST * expected, 1e-9))
            self.error = float(np.median(np.abs(expected / seconds - 1)))
        self._fitted = sum(self._noted)
        self.know(fit(steps, seconds), float(steps[:, 2].sum() / steps[:, 1].sum()))

    def decode_s(self, rows: int, context: int) -> float:
        """Seconds of a step in which `rows` requests decode, with `context` tokens together."""
        if self.cost is None or not rows:
            return 0.0
        return self.cost.decode + self.cost.decode_row * rows + self.cost.decode_context * context

    def prompts_s(self, tokens: int) -> float:
        """Seconds of a step that computes so many prompt tokens alone."""
        return 0.0 if self.cost is None else self.cost.prompts + self._token * tokens

    def tokens_within(self, seconds: float, rows: int = 0, context: int = 0) -> int:
        """Prompt tokens that a step may have to take at most `seconds`, if `rows` requests decode in it."""
        if self.cost is None or not self._token:
            return UNLIMITED
        fixed = self.cost.prompts + self.decode_s(rows, context) - self.cost.shared * (rows > 0)
        return max(0, int(min(UNLIMITED, (seconds - fixed) / self._token)))
