"""Asks a server what is not timed: again, where it had too much to do."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from harness.engines.running.trial import PAUSES_S
from harness.fairness.engine_reply import Reply, read_reply
from harness.loadgen.load_plan import LoadPlan, Target, WireRequest
from harness.loadgen.run_load import run_load

#: Errors that say that a server had too much to do, or was not reached: nothing of how it answers.
_BUSY = ("http_429", "http_503")
_UNANSWERED = (*_BUSY, "connect", "timeout")


def ask_all(
    target: Target, wire: Sequence[WireRequest], in_flight: int, exact_tokens: int | None
) -> list[Reply]:
    """Replies in the order of `wire`, of at most `in_flight` requests at once.

    Those that meet a limit on how much may be asked are sent again, after pauses of 63 s in all.

    Args:
        exact_tokens: An answer of another length is an error; None: it may have any.
    """
    replies: dict[int, Reply] = {}
    left = list(range(len(wire)))
    for pause in (0.0, *PAUSES_S):
        time.sleep(pause)
        again = [replace(wire[place], index=i) for i, place in enumerate(left)]
        found = run_load(LoadPlan(target, again, concurrency=in_flight), start_delay_s=0.1).responses
        replies |= {place: read_reply(raw, exact_tokens) for place, raw in zip(left, found, strict=True)}
        left = [place for place in left if _kind(replies[place]) in _BUSY]
        if not left:
            break
    return [replies[place] for place in range(len(wire))]


def is_unanswered(reply: Reply) -> bool:
    """Whether the server had too much to do, or was not reached."""
    return _kind(reply) in _UNANSWERED


def _kind(reply: Reply) -> str:
    return (reply.error or "").partition(":")[0]
