"""Limits of what waits for the engine, for all clients together and for each."""

from __future__ import annotations

from roseinfer.server.http.errors import RETRY_AFTER, HttpError
from roseinfer.server.metrics.counters import Counters


class QueueLimits:
    """At most `answers` answers, with prompts of `tokens` tokens together, wait for their first token. One
    client may have as much as is still free, so that there is always room for others (dynamic thresholds,
    Choudhury and Hahne, 1998): a single client gets half of the limit, two get a third each.
    """

    def __init__(self, counters: Counters, answers: int, tokens: int) -> None:
        self._counters, self._limits = counters, (answers, tokens)

    @property
    def full(self) -> bool:
        """Whether no client can have anything more wait."""
        _, total = self._counters.waiting(0)
        return any(has >= limit for has, limit in zip(total, self._limits, strict=True))

    def check(self, client: int, answers: int, tokens: int = 0) -> None:
        """Raise HttpError, 503 or 429, where `client` cannot have `answers` more wait, with prompts of
        `tokens` together. While half is free a client's first request is taken, whatever its size."""
        own, total = self._counters.waiting(client)
        for limit, has, all_have, wanted in zip(self._limits, own, total, (answers, tokens), strict=True):
            if (not has and 2 * all_have <= limit) or has + wanted <= limit - all_have:
                continue
            if has:
                message = "too many of your requests wait; ask again when some have been answered"
                raise HttpError(429, message, headers=RETRY_AFTER)
            raise HttpError(503, "too many requests wait; ask again later", headers=RETRY_AFTER)
