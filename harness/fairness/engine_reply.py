"""One answer of an engine."""

from __future__ import annotations

import msgspec
from pydantic import Field

from harness.loadgen.load_plan import RawResponse
from harness.loadgen.sse import read_events, read_json
from harness.records.request_record import read_request
from harness.records.wire import read_wire
from harness.schema.base import Strict


class Reply(Strict):
    """One answer of `count` tokens; `tokens` are their ids if the engine returns ids, else null.

    The end-of-sequence token may be among them or not.
    """

    tokens: list[int] | None
    text: str
    count: int
    error: str | None = Field(description="why the request failed; null for a success")
    exact: bool = Field(True, description="whether it had to have a length; else it ended on its own")


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


_events = msgspec.json.Decoder(_Event)


def read_reply(raw: RawResponse, exact_tokens: int | None) -> Reply:
    """The answer in a response of /v1/completions; with `exact_tokens`, another length is an error, and
    without, an answer may end before its first token."""
    record = read_request(raw, exact_tokens)
    count, exact = record.completion_tokens or 0, exact_tokens is not None
    if record.error == "no_tokens" and record.finish_reason == "stop" and not exact:
        return Reply(tokens=[], text="", count=0, error=None, exact=False)
    if record.error is not None:
        return Reply(tokens=None, text="", count=count, error=f"{record.error}: {record.detail}", exact=exact)
    wire = read_wire(raw)
    sent = (data for _, data in read_events(wire.body, complete=wire.complete) if data != b"[DONE]")
    choices = [event.choices[0] for event in (read_json(_events, data) for data in sent) if event.choices]
    ids = [token for choice in choices for token in choice.token_ids or ()]
    text = "".join(choice.text or "" for choice in choices)
    return Reply(tokens=ids or None, text=text, count=count, error=None, exact=exact)
