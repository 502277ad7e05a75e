"""Asks a server what is not timed: again, where it had too much to do."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace
from pydantic import Field

from harness.engines.base import Encoder
from harness.engines.running.trial import PAUSES_S
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target, WireRequest
from harness.loadgen.run_load import run_load
from harness.records.request_record import read_request, read_wire
from harness.records.stream import read_stream
from harness.schema.base import Strict
from harness.workload import PlannedRequest

#: Errors that say that a server had too much to do, or was not reached: nothing of how it answers.
_BUSY = ("http_429", "http_503")
_UNANSWERED = (*_BUSY, "connect", "timeout")


def ask_all(
    target: Target,
    encode: Encoder,
    planned: Sequence[PlannedRequest],
    in_flight: int,
    exact_tokens: int | None,
    pauses_s: Sequence[float] = PAUSES_S,
) -> list[Reply]:
    """Replies in the order of `planned`, of at most `in_flight` requests at once.

    Those that meet a limit on how much may be asked are sent again, after each of `pauses_s`.

    Args:
        exact_tokens: An answer of another length is an error; None: it may have any.
    """
    replies: dict[int, Reply] = {}
    wire = [WireRequest(it.index, None, encode(it), most_tokens=it.output_tokens) for it in planned]
    unanswered = list(range(len(wire)))
    for pause in (0.0, *pauses_s):
        time.sleep(pause)
        again = [replace(wire[place], index=i) for i, place in enumerate(unanswered)]
        plan = LoadPlan(target, again, in_flight, target.answer_s, target.answer_s)
        responses = run_load(plan, start_delay_s=0.1).responses
        raw_replies = zip(unanswered, responses, strict=True)
        replies |= {place: read_reply(raw, exact_tokens) for place, raw in raw_replies}
        unanswered = [place for place in unanswered if _kind(replies[place]) in _BUSY]
        if not unanswered:
            break
    return [replies[place] for place in range(len(wire))]


def is_unanswered(reply: Reply) -> bool:
    """The server had too much to do, or was not reached."""
    return _kind(reply) in _UNANSWERED


def _kind(reply: Reply) -> str:
    return (reply.error or "").partition(":")[0]


class Reply(Strict):
    """One answer of `count` tokens; `tokens` are their ids if the engine returns ids, else null.

    The end-of-sequence token may be among them or not.
    """

    tokens: list[int] | None
    text: str
    count: int
    error: str | None = Field(description="why the request failed; null for a success")
    exact: bool = Field(True, description="whether it had to have a length; else it ended on its own")


def read_reply(raw: RawResponse, exact_tokens: int | None) -> Reply:
    """The answer in a response of /v1/completions; with `exact_tokens`, another length is an error, and
    without, an answer may end before its first token."""
    record = read_request(raw, exact_tokens)
    count, exact = record.completion_tokens or 0, exact_tokens is not None
    if record.error == "no_tokens" and record.finish_reason == "stop" and not exact:
        return Reply(tokens=[], text="", count=0, error=None, exact=False)
    if record.error is not None:
        return Reply(
            tokens=None, text="", count=count, error=f"{record.error}: {record.error_detail}", exact=exact
        )
    wire = read_wire(raw)
    stream = read_stream(wire.body, complete=wire.complete)
    ids = [token for of_chunk in stream.ids for token in of_chunk]
    return Reply(tokens=ids or None, text="".join(stream.text), count=count, error=None, exact=exact)
