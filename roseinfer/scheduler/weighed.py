"""Composes steps by what they are expected to cost, for what is preferred, within limits where they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roseinfer.batch import NO_INTS, Ints
from roseinfer.scheduler.cost import UNLIMITED, StepCosts
from roseinfer.scheduler.policies import MIXED_PARTS, Chunk, StepParts

#: Prompts are many if they take longer than this together, and this many times as many requests wait as
#: decode: those that wait now are computed, and few have to wait for them. Where prompts come without end,
#: more requests decode.
MANY_S, MANY_TIMES = 0.11, 4
#: Most seconds of a step of prompts alone; and of the first of such steps in succession, whose requests wait
#: for the others in any case: none of them begins much sooner than the rest.
ALONE_S, FIRST_S = 0.1, 0.19
#: Most seconds of a step in which others decode, if that is more than twice the time in which they decode
#: without prompts, but for parts of long prompts (see Aim). Each step may have at least LEAST prompt tokens.
BESIDE_S, LEAST = 0.055, 64
#: Most seconds that running requests wait for steps of prompts alone.
STALL_S = 4.0


@dataclass(frozen=True)
class Aim:
    """A preference: which steps it asks for while requests decode and prompts wait.

    Args:
        alone: which prompts have steps of their own: "many" (see MANY_S), so that all then decode together;
            "few", no more than BESIDE_S takes, so that they are there at once; None: none.
        pace: a step with prompts takes at most so many times as long as one without,
        drain: unless it must take longer so that what waits is computed in so many steps,
        parts: or a prompt that has begun in so many, as each of them reads all keys before it.
    """

    alone: Literal["few", "many"] | None = None
    pace: float | None = None
    drain: int | None = None
    parts: int | None = None


#: By --prefer. The values are from the simulation in docs/notes/h200-llama.md.
AIMS = {
    "latency": Aim(pace=2.5, drain=32),
    "balanced": Aim("many", parts=4),
    "first-token": Aim("few", pace=4, drain=16),
    "throughput": Aim(pace=4, drain=16),
}


class Weighed:
    """A composition by the expected cost of steps. All running requests decode in every step, as in
    Sarathi-Serve (Agrawal et al., OSDI 2024), but in steps of prompts alone, as `aim` asks for them.

    Args:
        rows: most rows of a step in which requests decode, but for a part of a long prompt; they count as
            padded to the sizes of captured steps, and leave at least half of the rows. None: as many as there
            is time for.
        most: most prompt tokens of a step.
        tpot, ttft: limits in seconds. No step takes longer than `tpot` while requests decode: else prompts
            wait. Within `tpot`, steps have as many prompt tokens as are needed for no first token to be later
            than `ttft`.
    """

    def __init__(
        self,
        costs: StepCosts,
        aim: Aim = Aim(),
        *,
        rows: int | None = None,
        most: int = UNLIMITED,
        tpot: float | None = None,
        ttft: float | None = None,
    ) -> None:
        self._costs, self._aim, self.rows, self._tpot, self._ttft = costs, aim, rows, tpot, ttft
        self._most = most
        self._stalled, self._many = 0.0, 0

    @property
    def most_rows(self) -> int:
        """Prompt tokens that a step beside others has at most."""
        return self._most if self._aim.parts or not self.rows else self.rows

    def __call__(self, parts: StepParts) -> tuple[list[Chunk], Ints]:
        if parts.waiting:
            many = parts.waiting >= MANY_TIMES * parts.decoding
            if not self._many and many and self._costs.prompts_s(parts.tokens) > MANY_S:
                self._many = parts.waiting
            budget = max(LEAST, self._costs.tokens_within(max(ALONE_S, FIRST_S - self._stalled)))
            seconds = self._costs.prompts_s(min(parts.tokens, budget))
            if not parts.decoding or self._alone(parts, seconds):
                chunks = parts.prompts(budget)
                if chunks:
                    self._many = max(0, self._many - sum(chunk.last for chunk in chunks))
                    self._stalled += seconds
                    return chunks, NO_INTS
        self._stalled, self._many = 0.0, self._many if parts.waiting else 0
        rows = parts.decode()
        tokens = self.budget(parts, len(rows)) if parts.waiting else 0
        return parts.prompts(tokens, cut=True) if tokens else [], rows

    def _alone(self, parts: StepParts, seconds: float) -> bool:
        """Return whether the next step, of so many seconds, has prompts alone while requests wait for it."""
        if self._tpot is not None:
            return False
        few = self._costs.prompts_s(parts.tokens) <= BESIDE_S
        alone = few if self._aim.alone == "few" else self._many > 0 and self._aim.alone == "many"
        return alone and self._stalled + seconds <= STALL_S

    def budget(self, parts: StepParts, decoding: int) -> int:
        """Prompt tokens of a step in which `decoding` requests decode."""
        decode_s, padded, stride = self._costs.decode_s(decoding, parts.context), 0, 1
        if self.rows is not None:
            padded = next((size for size in MIXED_PARTS if decoding <= size), decoding)
            stride = max(1, self.rows // MIXED_PARTS.get(padded, 1))
        limit = max(BESIDE_S, 2 * decode_s) if self._aim.pace is None else self._aim.pace * decode_s
        tokens = max(LEAST, self._costs.tokens_within(limit, decoding, parts.context))
        if self._aim.drain is not None:
            tokens = max(tokens, parts.tokens // self._aim.drain)
        longest, rest = parts.longest
        part = min(longest // self._aim.parts, rest, self._most) if self._aim.parts else 0
        tokens = max(tokens, part)
        if self._ttft is not None and (left := self._ttft - parts.waited()) > 0:
            tokens = max(tokens, int(parts.tokens * min(1, limit / left)))
        if self._tpot is not None:
            tokens = min(tokens, self._costs.tokens_within(self._tpot, decoding, parts.context))
        if self.rows is None or min(tokens, part) > self.rows:  # such steps are not captured
            return tokens
        whole = (tokens + padded) // stride * stride - padded
        return min(max(self.rows - padded, self.rows // 2, 1), whole if whole > 0 else tokens)
