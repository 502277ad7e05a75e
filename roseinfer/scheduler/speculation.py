"""Speculation: tokens that a request is likely to generate next are drafted, and verified in one step
(Leviathan et al., 2023). Drafts come from the request's own tokens (prompt lookup; Saxena, 2023), or from a
small model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import UNKNOWN, Batch, Ints
from roseinfer.info import DraftCounts
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running

#: The last tokens of a request that must have come before in it, for what followed them to be drafted; and
#: how many are compared at most.
SHORTEST, LONGEST = 3, 8
#: The most rows of a step that verifies drafts.
MOST_ROWS = 64
#: How many durations are kept of plain steps with as many requests; how many are needed to rely on them.
RECENT, FEWEST = 16, 3
#: Share of the time of plain steps that drafts may lose, and bounds of what they have gained, in plain steps.
SHARE, LEAST, MOST = 0.02, -4.0, 8.0
#: Tokens that a draft model has not seen of a request whose drafts were all accepted: the last of them, and
#: the newest. What it costs to see more, as of prompts, may be repaid later: the most plain steps lent.
UNSEEN, LENT = 2, 32.0
#: Weight of the newest step in estimates, and how far they drift with a plain step.
WEIGHT, DRIFT = 0.2, 0.01


def lookup(tokens: NDArray[np.int32], most: int) -> tuple[NDArray[np.int32], int]:
    """Draft the `most` tokens after `tokens` `[n]`: those that followed the last place where the newest ones
    came before, repeated if it is nearer than that. Returns them, and how many tokens agree there, at most
    LONGEST; no drafts if these are less than SHORTEST."""
    ends, agreeing = np.flatnonzero(tokens[:-1] == tokens[-1]), 0
    while len(ends):
        place, agreeing = int(ends[-1]), agreeing + 1
        if agreeing == LONGEST:
            break
        ends = ends[ends >= agreeing]
        ends = ends[tokens[ends - agreeing] == tokens[-1 - agreeing]]
    if agreeing < SHORTEST:
        return tokens[:0], agreeing
    return tokens[place + 1 + np.arange(most) % (len(tokens) - 1 - place)], agreeing


#: Does what `lookup` does.
Drafter = Callable[[NDArray[np.int32], int], tuple[NDArray[np.int32], int]]


class ModelDrafts(Protocol):
    """Drafts by a small model. `caught_up_s`: how long it took for that to see more than UNSEEN tokens."""

    caught_up_s: float

    def draft(self, running: Running, rows: Ints, most: list[int]) -> list[NDArray[np.int32]]:
        """Draft up to `most` tokens for each of `rows` `[D]`, which have blocks for them."""


class Account:
    """Finds whether drafts pay, by the measured durations of steps and the share of tokens accepted.

    A step with drafts gains what plain steps take for its tokens, less what it took. Plain steps add a SHARE
    of their time. What drafts lose where they do not pay is bounded by that share: without a gain there are
    none. What a draft model takes to see prompts is lent, and repaid by what is gained. Estimates drift back
    towards the best with every plain step, so that drafts are tried again.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        #: By requests, how many plain steps a step with drafts takes; and the share of tokens accepted.
        self._cost: dict[int, float] = defaultdict(lambda: 1.0)
        self._accepted = 1.0
        self._gained = self._lent = 0.0

    def allows(self, requests: int) -> bool:
        """Return whether a step of so many requests may have drafts."""
        return self._gained >= 0 and self._plain_s(requests) is not None

    def pays(self, requests: int, drafted: int) -> bool:
        """Return whether a step of so many requests is likely to gain by so many drafted tokens."""
        return drafted * self._accepted > (self._cost[requests] - 1) * requests

    def lends(self, requests: int) -> bool:
        """Return whether a step of so many requests, which may have drafts, may see prompts for them."""
        return self._lent < LENT * (self._plain_s(requests) or 0.0)

    def lend(self, seconds: float) -> None:
        """Count what a draft model took to see prompts, which no step counts."""
        self._lent += seconds

    def plain(self, requests: int, seconds: float) -> None:
        """Count a step without drafts, launched as early as without speculation."""
        self._plain[requests].append(seconds)
        self._add(SHARE * seconds, seconds)
        self._accepted += DRIFT * (1 - self._accepted)
        self._cost[requests] += DRIFT * (1 - self._cost[requests])

    def drafted(self, requests: int, tokens: int, seconds: float, *, verified: bool = True) -> None:
        """Count a step that yielded `tokens`. Not `verified`: it had no drafts, but was launched later as it
        might have had."""
        if (plain_s := self._plain_s(requests)) is None:
            return
        self._add(tokens / requests * plain_s - seconds, plain_s)
        if verified:
            cost = min(seconds / plain_s, MOST)
            self._cost[requests] += WEIGHT * (cost - self._cost[requests])

    def accepted(self, share: float) -> None:
        """Count the share of the tokens drafted for a request that were accepted."""
        self._accepted += WEIGHT * (share - self._accepted)

    def _add(self, gain: float, plain_s: float) -> None:
        gained = self._gained + gain
        repaid = min(max(gained, 0.0), self._lent)
        self._lent -= repaid
        self._gained = min(max(gained - repaid, LEAST * plain_s), MOST * plain_s)

    def _plain_s(self, requests: int) -> float | None:
        """Duration of a plain step of so many requests, or of the most fewer ones that are known; None:
        unknown."""
        fewer = [each for each, took in self._plain.items() if each <= requests and len(took) >= FEWEST]
        return median(self._plain[max(fewer)]) if fewer else None


class Speculation:
    """Drafts at most `most` tokens for a request in a step, where that pays (see Account): those of `model`,
    if there is one.

    A request drafts twice as many as before, and one, once all of them were accepted, and about half as many
    where they were not; at last one by a model, or else none, but after a repetition of LONGEST tokens.
    """

    def __init__(self, most: int, drafts: Drafter = lookup, model: ModelDrafts | None = None) -> None:
        self._most, self._drafts_of, self._model = most, drafts, model
        self.forget()

    def forget(self, *, drafts: bool = True) -> None:
        """Forget how many tokens were drafted and accepted, and how long steps took. `drafts`: whether there
        are any from now on."""
        self._account, self._drafting = Account(), drafts
        self._drafts = self._drafted = 0
        self._accepted = np.zeros(self._most, dtype=np.int64)

    @property
    def counts(self) -> DraftCounts:
        """Counts of drafted and accepted tokens since the start."""
        return DraftCounts(self._drafts, self._drafted, tuple(self._accepted.tolist()))

    def plan(self, running: Running, rows: Ints) -> list[int]:
        """Return how many tokens to draft for each of `rows` `[D]` at most; empty if that does not pay."""
        count = len(rows)
        room = MOST_ROWS // count - 1 if count else 0
        if room < 1 or not self._drafting or not self._account.allows(count):
            return []
        left = (running.last_stop[rows] - running.length[rows] - 1).tolist()
        depths = [self._depth(running.request(row)) or 1 for row in rows.tolist()]
        most = [max(0, min(depth, room, each)) for depth, each in zip(depths, left, strict=True)]
        if self._model is not None and not self._account.lends(count):
            unseen = [int(running.length[row]) - running.request(row).draft_context for row in rows.tolist()]
            most = [each * (rest <= UNSEEN) for each, rest in zip(most, unseen, strict=True)]
        return most if self._account.pays(count, sum(most)) else []

    def draft(self, running: Running, rows: Ints, most: list[int]) -> list[NDArray[np.int32]]:
        """Tokens drafted for each of `rows` `[D]`, at most `most`; empty if that does not pay. Where a token
        is UNKNOWN yet, it is the first to be drafted."""
        if not any(most):
            return []
        if self._model is not None:
            drafts = self._model.draft(running, rows, most)
        else:
            drafts = [self._look_up(running, *each) for each in zip(rows.tolist(), most, strict=True)]
        return drafts if self._account.pays(len(rows), sum(map(len, drafts))) else []

    def likely(self, running: Running, rows: Ints) -> bool:
        """Return whether tokens are likely to be drafted for `rows` `[D]`, whose newest may be UNKNOWN."""
        most = self.plan(running, rows)
        return any(most) and (self._model is not None or len(self.draft(running, rows, most)) > 0)

    def _look_up(self, running: Running, row: int, most: int) -> NDArray[np.int32]:
        length = int(running.length[row])
        tokens = running.tokens[row, : length - int(running.tokens[row, length - 1] == UNKNOWN)]
        drafts, agreeing = self._drafts_of(tokens, most)
        return drafts if agreeing == LONGEST or running.request(row).depth != 0 else drafts[:0]

    def _depth(self, request: Request) -> int:
        return (self._most + 1) // 2 if request.depth is None else request.depth

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """Count the tokens `drafted` for `request`, the first `accepted` of which were accepted."""
        if not drafted:
            return
        self._drafts += 1
        self._drafted += drafted
        self._accepted[:accepted] += 1
        self._account.accepted(accepted / drafted)
        request.draft_context += min(accepted, drafted - 1)  # a model computes all but the last
        depth = self._depth(request)
        more, fewer = max(depth, 2 * drafted + 1), max(accepted, depth // 2)
        request.depth = min(self._most, more if accepted == drafted else fewer)

    def ended(self, batch: Batch, tokens: int, seconds: float, *, awaited: bool) -> None:
        """A step has yielded `tokens` in `seconds`. `awaited`: it was launched late, so that it could have
        drafts."""
        if self._model is not None:
            self._account.lend(self._model.caught_up_s)
            seconds -= self._model.caught_up_s
            self._model.caught_up_s = 0.0
        if batch.verifying or (awaited and not batch.segments):
            requests = batch.verifying or len(batch.requests)
            self._account.drafted(requests, tokens, seconds, verified=batch.verifying > 0)
        elif not batch.segments:
            self._account.plain(len(batch.requests), seconds)
