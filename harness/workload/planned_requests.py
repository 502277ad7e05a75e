"""Requests of a load: of a trace at a scale, of a closed loop, and for the warm-up; their prompts.

Ids of prompts come from a counter-based generator (Philox; Salmon et al., SC 2011). Its key is the seed and a
stream, its counter starts at the request's index or the block's hash. Counters never overlap, so two prompts,
also of other seeds or streams, share a block of 16 tokens only with a probability below V^-16. Prompts are
distinct by default, and equal exactly where prefixes of a trace are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK_TOKENS
from harness.traces.trace import Trace

#: The stream of prompts that belong to no trace.
UNTIMED = "closed loop"


class Message(TypedDict):
    """One message of a chat. `content` may be None where there are tool calls."""

    role: str
    content: str | None
    tool_calls: NotRequired[Sequence[Mapping[str, Any]]]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, eq=False, slots=True)
class PlannedRequest:
    """A request that is to be sent.

    Attributes:
        t_sched_s: Seconds from the start of the load to when it is sent; None in a closed loop.
        prompt: (T,) token ids; empty while they are unknown.
        output_tokens: Tokens of the answer, at most or exactly.
        after: Requests of its session, before it, whose answers must have ended before it is sent.
        text: The prompt as text, of a dataset.
        messages: The prompt as a conversation, of a dataset.
        tools: What the model may call, as OpenAI's field of that name.
        adapter: Requested instead of the model.
        response_format: OpenAI's field of that name.
        think_s: Seconds from the last answer to `after`, or from the session's beginning, to when it is sent;
            such a turn has no time of its own.
        answers: Requests for whose answers markers stand in `text` and `messages`.
        turn: Counts from 0 within `session`.
        category: What kind of prompt the dataset says it is.
    """

    index: int
    t_sched_s: float | None
    prompt: NDArray[np.int32]
    output_tokens: int
    after: tuple[int, ...] = ()
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    adapter: str | None = None
    response_format: Mapping[str, Any] | None = None
    think_s: float | None = None
    answers: tuple[int, ...] = ()
    session: int | None = None
    turn: int = 0
    category: str | None = None


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
        after, session, turn = places[index] if places else ((), None, 0)
        requests.append(
            PlannedRequest(index, times[index], prompt, output, after, session=session, turn=turn)
        )
    return requests


def _session_places(trace: Trace) -> list[tuple[tuple[int, ...], int | None, int]]:
    """Return the turn before each request, the number of its session, and its turn in that.

    Empty if there are no sessions.
    """
    if trace.session is None:
        return []
    numbers: dict[str, int] = {}
    latest: dict[str, tuple[tuple[int, ...], int]] = {}
    places: list[tuple[tuple[int, ...], int | None, int]] = []
    for index, session in enumerate(trace.session.tolist()):
        if not session:
            places.append(((), None, 0))
            continue
        before, turn = latest.get(session, ((), -1))
        latest[session] = (index,), turn + 1
        places.append((before, numbers.setdefault(session, len(numbers)), turn + 1))
    return places


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


class PromptSource:
    """Prompts of one stream of one seed; equal arguments give equal tokens.

    Ids are below `vocab_size - 1`: the last id is GPT-2's only special token, the end of text.
    """

    def __init__(self, vocab_size: int, seed: int, stream: str) -> None:
        if vocab_size < 2:
            raise ValueError("a vocabulary has at least two tokens")
        self._ids = np.uint64(vocab_size - 1)
        self._prompts = _key(seed, stream)
        self._blocks = _key(seed, f"{stream} blocks")

    def distinct(self, index: int, length: int) -> NDArray[np.int32]:
        """Draw the prompt of the request at `index`: (length,) tokens shared with no other prompt."""
        return self._draw(self._prompts, index, length)

    def shared(self, index: int, length: int, blocks: Sequence[int], block_size: int) -> NDArray[np.int32]:
        """Draw a prompt, (length,), that begins with `blocks`, given by their hashes, of `block_size` tokens.

        Equal hashes give equal tokens. The last block is cut at the end of the prompt; tokens after the
        blocks are shared with no other prompt.
        """
        needed = -(-length // block_size)
        parts = [self._draw(self._blocks, block, block_size) for block in blocks[:needed]]
        parts.append(self.distinct(index, max(0, length - len(parts) * block_size)))
        return np.concatenate(parts)[:length]

    def _draw(self, key: NDArray[np.uint64], place: int, length: int) -> NDArray[np.int32]:
        low, high = place & 0xFFFF_FFFF_FFFF_FFFF, (place >> 64) & 0xFFFF_FFFF_FFFF_FFFF
        generator = np.random.Philox(key=key, counter=np.array([0, 0, low, high], dtype=np.uint64))
        raw = np.asarray(generator.random_raw(length), dtype=np.uint64)
        return (raw % self._ids).astype(np.int32)


def _key(seed: int, stream: str) -> NDArray[np.uint64]:
    """Return a 128-bit key from a seed and a name; (2,)."""
    digest = hashlib.blake2b(f"{seed} {stream}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype=np.uint64)


def reusable_tokens(prompts: Iterable[NDArray[np.int32]]) -> list[int]:
    """Count the leading tokens of each prompt, (T,), that an earlier one had, in whole blocks.

    An unbounded prefix cache could reuse these. A prompt is in the cache from the moment it is sent. The last
    token of a prompt is always computed, because its logits are needed, so its block is never reused.
    """
    cached: set[bytes] = set()
    reusable = []
    for prompt in prompts:
        chains = list(_chain(prompt))
        blocks = sum(chain in cached for chain in chains)
        reusable.append(min(blocks, max(0, len(prompt) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS)
        cached.update(chains)
    return reusable


def _chain(prompt: NDArray[np.int32]) -> Iterable[bytes]:
    """Yield, for each whole block, a digest of the prompt up to its end."""
    digest = hashlib.blake2b(digest_size=16)
    for end in range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS):
        digest.update(prompt[end - BLOCK_TOKENS : end].tobytes())
        yield digest.digest()


#: The model itself among its adapters.
BASE = "base"
#: Beside the seeds of prompts.
_STREAM = 0x10A
#: Types of a `response_format`; a file with another one is a JSON schema.
_TYPES = ("json_schema", "json_object", "text", "structural_tag", "grammar")


@dataclass(frozen=True)
class DrawnFields:
    """Choices that are drawn from.

    Attributes:
        adapters: Weight of each adapter (LoRA) by its name in requests; BASE is the model without one.
        response_format: OpenAI's field of that name; None: answers are free.
        share: Share of the requests that get it.
    """

    adapters: Mapping[str, float]
    response_format: Mapping[str, Any] | None = None
    share: float = 1.0

    @classmethod
    def make(cls, adapters: Mapping[str, float], response_format: Path | None, share: float) -> Self | None:
        """Read the file of the format; None if all requests are alike.

        Raises:
            UsageError: The file cannot be used.
        """
        if not adapters and response_format is None:
            return None
        return cls(adapters, None if response_format is None else _read_format(response_format), share)

    def draw(self, requests: Sequence[PlannedRequest], seed: int) -> list[PlannedRequest]:
        """Return the requests with drawn fields: the same for the same seed, for every engine."""
        rng = np.random.default_rng([seed, _STREAM])
        names, weights = list(self.adapters), np.array(list(self.adapters.values()), float)
        adapters: list[str | None] = [None] * len(requests)
        if names:
            choices = rng.choice(len(names), len(requests), p=weights / weights.sum()).tolist()
            adapters = [None if names[i] == BASE else names[i] for i in choices]
        formatted = rng.random(len(requests)) < self.share
        return [
            replace(request, adapter=adapter, response_format=self.response_format if has_format else None)
            for request, adapter, has_format in zip(requests, adapters, formatted, strict=True)
        ]


def _read_format(path: Path) -> dict[str, Any]:
    """Read a `response_format`, or a JSON schema, which becomes one."""
    hint = "write OpenAI's response_format or a JSON schema into it"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--response-format {path}: {error.strerror}", "name a JSON file") from None
    except ValueError as error:
        raise UsageError(f"--response-format {path} is not JSON: {error}", hint) from None
    if not isinstance(content, dict):
        raise UsageError(f"--response-format {path} is no JSON object", hint)
    if content.get("type") in _TYPES:
        return content
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": content, "strict": True}}
