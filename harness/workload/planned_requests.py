"""Requests of a load: of a trace at a scale, of a closed loop, and for the warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

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
    """A request that is to be sent.

    Attributes:
        t_sched_s: Seconds from the start of the load to when it is sent; None in a closed loop.
        prompt: (T,) token ids; empty while they are unknown.
        output_tokens: Tokens of the answer, at most or exactly.
        after: The previous turn of its session, whose answer must have ended before it is sent.
        text: The prompt as text, of a dataset.
        messages: The prompt as a conversation, of a dataset.
        adapter: Requested instead of the model.
        response_format: OpenAI's field of that name.
        think_s: Seconds from the answer to `after` to when it is sent; such a turn has no time of its own.
        answers: Requests for whose answers markers stand in `text` and `messages`.
        turn: Counts from 0 within `session`.
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


def open_loop(trace: Trace, scale: float, vocab_size: int, seed: int) -> list[PlannedRequest]:
    """Plan the requests of a trace with all times between arrivals multiplied by `scale`: smaller is heavier.

    Prompts do not depend on the scale. Requests that share block hashes share those tokens. A turn of a
    session follows the previous turn in the trace.
    """
    source = PromptSource(vocab_size, seed, "trace")
    times = ((trace.arrival_s - trace.arrival_s[:1]) * scale).tolist()
    places = _session_places(trace)
    requests = []
    for index, (length, output) in enumerate(
        zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    ):
        if trace.blocks is None or trace.block_size is None:
            prompt = source.distinct(index, length)
        else:
            prompt = source.shared(index, length, trace.blocks[index], trace.block_size)
        after, session, turn = places[index] if places else (None, None, 0)
        requests.append(
            PlannedRequest(index, times[index], prompt, output, after, session=session, turn=turn)
        )
    return requests


def _session_places(trace: Trace) -> list[tuple[int | None, int | None, int]]:
    """Return the turn before each request, the number of its session, and its turn in that.

    Empty if there are no sessions.
    """
    if trace.session is None:
        return []
    numbers: dict[str, int] = {}
    latest: dict[str, tuple[int, int]] = {}
    places: list[tuple[int | None, int | None, int]] = []
    for index, session in enumerate(trace.session.tolist()):
        if not session:
            places.append((None, None, 0))
            continue
        before, turn = latest.get(session, (None, -1))
        latest[session] = index, turn + 1
        places.append((before, numbers.setdefault(session, len(numbers)), turn + 1))
    return places


def closed_loop(
    n: int, input_len: int, output_len: int, vocab_size: int, seed: int, first: int = 0
) -> list[PlannedRequest]:
    """Plan `n` requests of equal lengths with distinct prompts, each sent when another one ends.

    The first `first` prompts of the seed are left out.
    """
    return distinct_requests(UNTIMED, [(input_len, output_len)] * n, vocab_size, seed, first)


def warmup(lengths: Sequence[tuple[int, int]], vocab_size: int, seed: int) -> list[PlannedRequest]:
    """Plan a request for each pair of input and output tokens, whose prompt is like no measured one."""
    return distinct_requests("warm-up", lengths, vocab_size, seed)


def distinct_requests(
    stream: str, lengths: Sequence[tuple[int, int]], vocab_size: int, seed: int, first: int = 0
) -> list[PlannedRequest]:
    """Plan a request for each pair of input and output tokens; no two prompts share a prefix.

    The first `first` prompts of the stream are left out.
    """
    source = PromptSource(vocab_size, seed, stream)
    return [
        PlannedRequest(index, None, source.distinct(first + index, input_len), output_len)
        for index, (input_len, output_len) in enumerate(lengths)
    ]


def end_whole(requests: Sequence[PlannedRequest], ends: NDArray[np.int32]) -> list[PlannedRequest]:
    """Replace the last token of each random prompt that would end within a character.

    Args:
        ends: (V,) the token to end with instead of each token; those beyond V stay.
    """
    return [_end_whole(request, ends) for request in requests]


def _end_whole(request: PlannedRequest, ends: NDArray[np.int32]) -> PlannedRequest:
    written = request.text is not None or request.messages is not None
    if written or not request.prompt.size or (last := int(request.prompt[-1])) >= len(ends):
        return request
    if ends[last] == last:
        return request
    prompt = request.prompt.copy()
    prompt[-1] = ends[last]
    return replace(request, prompt=prompt)
