"""The requests of a load: of a trace at a scale, of a closed loop, and for the warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from harness.lazy_sequence import make_sequence
from harness.traces.trace import Trace
from harness.workload.prompts import PromptSource

#: The stream of prompts that belong to no trace.
UNTIMED = "closed loop"


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, eq=False, slots=True)
class PlannedRequest:
    """A request: token ids in (int32, one dimension), `output_tokens` out.

    `t_sched_s` is when to send it, in seconds since the start of the load; None in a closed loop. It is not
    sent before the answer to request `after`, the previous turn of its session, has ended. Of a dataset's
    prompt there is also its `text`, of a conversation its `messages`. `adapter` is asked for instead of the
    model, and its answer has `response_format`, where they are set.

    A turn with `think_s` has no time of its own: it is sent so long after that answer. In `text` and
    `messages` markers stand for the answers to the requests `answers`; its token ids are not known before.
    `turn` counts from 0 within `session`.
    """

    index: int
    t_sched_s: float | None
    prompt: NDArray[np.int32]
    output_tokens: int
    after: int | None = None
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    adapter: str | None = None
    response_format: Mapping[str, Any] | None = None
    think_s: float | None = None
    answers: tuple[int, ...] = ()
    session: int | None = None
    turn: int = 0


def open_loop(trace: Trace, scale: float, vocab_size: int, seed: int) -> Sequence[PlannedRequest]:
    """The requests of a trace with all times between arrivals multiplied by `scale`: smaller is heavier.

    Prompts do not depend on the scale. Requests that share block hashes share those tokens. A turn of a
    session follows the previous turn in the trace."""
    source = PromptSource(vocab_size, seed, "trace")
    times, places = (trace.arrival_s - trace.arrival_s[:1]) * scale, _places(trace)

    def request(index: int) -> PlannedRequest:
        length = int(trace.input_tokens[index])
        if trace.blocks is None or trace.block_size is None:
            prompt = source.distinct(index, length)
        else:
            prompt = source.shared(index, length, trace.blocks[index], trace.block_size)
        after, session, turn = places[index] if places else (None, None, 0)
        output = int(trace.output_tokens[index])
        return PlannedRequest(index, float(times[index]), prompt, output, after, session=session, turn=turn)

    return make_sequence(len(trace), request)


def _places(trace: Trace) -> list[tuple[int | None, int | None, int]]:
    """For each request the index of the turn before it, the number of its session, and its turn in that.
    Empty where there are no sessions."""
    if trace.session is None:
        return []
    numbers: dict[str, int] = {}
    latest: dict[str, tuple[int, int]] = {}
    found: list[tuple[int | None, int | None, int]] = []
    for index, session in enumerate(trace.session.tolist()):
        if not session:
            found.append((None, None, 0))
            continue
        before, turn = latest.get(session, (None, -1))
        latest[session] = index, turn + 1
        found.append((before, numbers.setdefault(session, len(numbers)), turn + 1))
    return found


def closed_loop(
    n: int, input_len: int, output_len: int, vocab_size: int, seed: int, first: int = 0
) -> Sequence[PlannedRequest]:
    """`n` requests of equal lengths with distinct prompts, each sent when another one ends.

    The first `first` prompts of the seed are left out."""
    return distinct_requests(UNTIMED, [(input_len, output_len)] * n, vocab_size, seed, first)


def warmup(lengths: Sequence[tuple[int, int]], vocab_size: int, seed: int) -> Sequence[PlannedRequest]:
    """One request for each pair of input and output tokens. No prompt shares a prefix with a measured one."""
    return distinct_requests("warm-up", lengths, vocab_size, seed)


def distinct_requests(
    stream: str, lengths: Sequence[tuple[int, int]], vocab_size: int, seed: int, first: int = 0
) -> Sequence[PlannedRequest]:
    """One request for each pair of input and output tokens; no two prompts share a prefix. The first `first`
    prompts of the stream are left out."""
    source = PromptSource(vocab_size, seed, stream)

    def request(index: int) -> PlannedRequest:
        input_len, output_len = lengths[index]
        return PlannedRequest(index, None, source.distinct(first + index, input_len), output_len)

    return make_sequence(len(lengths), request)
