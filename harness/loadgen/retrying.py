"""Requests that fail in a way that may pass: whether they are sent again, and after how long."""

from __future__ import annotations

import re
from contextlib import suppress
from email.utils import parsedate_to_datetime
from random import Random
from time import time

from harness.loadgen.load_plan import LoadPlan, RawResponse

#: A limit on how much may be asked, a gateway or a server that is overloaded or not there for the moment.
_PASSING = {b"408", b"425", b"429", b"500", b"502", b"503", b"504", b"529"}
_STATUS = re.compile(rb"HTTP/1\.\d (\d{3})")
_RETRY_AFTER = re.compile(rb"^retry-after(-ms)?:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE)
#: The first pause; each is twice the one before, up to the longest, and drawn between a half and all of it,
#: so that requests which were refused together do not come back together.
FIRST_S, LONGEST_S = 0.5, 30.0


def failed_status(response: RawResponse) -> bytes | None:
    """Return the status of an answer that is an error; None of another, or where no status came."""
    if not response.segments:
        return None
    status = response.segments[0][1][9:12]
    if status[:1] == b"1":  # announces the answer proper
        status = _STATUS.findall(b"".join(data for _, data in response.segments))[-1]
    return status if status[:1] in (b"4", b"5") else None


def pause_s(response: RawResponse, plan: LoadPlan) -> float | None:
    """Return how long to wait before the request of an ended `response` is sent again; None: it is not.

    It is at least as long as the server asks for with Retry-After. A request whose deadline would pass
    meanwhile is not sent again, nor one of which tokens came.
    """
    status = failed_status(response)
    broken = response.error in ("connect", "disconnected") and not response.segments
    passing = broken or (response.error is None and status in _PASSING)
    if not passing or response.retries >= plan.retries or response.t_end is None:
        return None
    most = min(FIRST_S * 2**response.retries, LONGEST_S)
    pause = most * Random(f"{response.index} {response.retries}").uniform(0.5, 1.0)
    pause = max(pause, _asked_s(response))
    begun = response.t_end if response.t_sent is None else response.t_sent
    return pause if response.t_end + pause - begun <= plan.deadline_s else None


def _asked_s(response: RawResponse) -> float:
    """Seconds of the answer's Retry-After: a number, or a date; 0 without one."""
    head = b"".join(data for _, data in response.segments).partition(b"\r\n\r\n")[0]
    if (match := _RETRY_AFTER.search(head)) is None:
        return 0.0
    text = match[2].decode("latin-1").strip()
    with suppress(ValueError):
        return float(text) / (1000 if match[1] else 1)
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    return 0.0
