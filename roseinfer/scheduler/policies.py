"""Scheduling policies: the limits of a step, how prompts are chunked, and how steps are composed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from roseinfer.batch import NO_INTS, Ints
from roseinfer.scheduler.admission import Admission, Fifo
from roseinfer.scheduler.cost import StepCosts


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of the prompt in running row `row`, after `context` computed ones; `last`: they complete
    the prompt."""

    row: int
    context: int
    count: int
    last: bool


class Chunking(ABC):
    """The number of tokens of a prompt that a step computes."""

    @abstractmethod
    def part(self, rest: int, budget: int, *, first: bool) -> int:
        """Tokens to compute of `rest`, with `budget` tokens left in the step; 0 where none fit.

        `first`: the step has no prompt yet.
        """


class WholePrompts(Chunking):
    """A prompt is computed in one step; the first of a step may exceed the budget."""

    def part(self, rest: int, budget: int, *, first: bool) -> int:
        return rest if first or rest <= budget else 0


@dataclass(frozen=True)
class ChunkedPrompts(Chunking):
    """A prompt is computed in chunks of at most `size` tokens, and never more than the budget has left."""

    size: int

    def part(self, rest: int, budget: int, *, first: bool) -> int:
        return min(rest, self.size, budget)


class Prompts(Protocol):
    """Returns chunks of prompts within the limits of a step, and within `budget` tokens if given. `cut`:
    prompts are chunked to fill the budget, whatever the chunking policy."""

    def __call__(self, budget: int | None = None, *, cut: bool = False) -> list[Chunk]: ...


@dataclass(frozen=True)
class StepParts:
    """The prefill and the decode part of a step, and how many requests wait for their first token or decode.

    Calling `prompts` or `decode` makes the part and gives its requests their blocks, so the part that is
    called first takes blocks before the other; `decode` may preempt.

    Where requests wait: `tokens`, how many tokens of their prompts are not computed; `longest`, of the
    longest prompt that has a row, how many were to be computed when it got it, and how many are left;
    `context`, the tokens of those that decode; `waited`, the longest wait in seconds.
    """

    prompts: Prompts
    decode: Callable[[], Ints]
    waiting: int
    decoding: int = 0
    tokens: int = 0
    longest: tuple[int, int] = (0, 0)
    context: int = 0
    waited: Callable[[], float] = float


#: Composes a step: calls for one or both of its parts. Returns chunks of prompts, and decode rows `[D]`.
Composition = Callable[[StepParts], tuple[list[Chunk], Ints]]


def decode_first(parts: StepParts) -> tuple[list[Chunk], Ints]:
    """Decode rows `[D]` in every step; prompts take the blocks that are left."""
    rows = parts.decode()
    return parts.prompts(), rows


def prefill_first(parts: StepParts) -> tuple[list[Chunk], Ints]:
    """Compute only prompts in a step that has any: decode rows `[D]` wait until no prompt can be admitted."""
    chunks = parts.prompts()
    return chunks, NO_INTS if chunks else parts.decode()


#: Consecutive prefill steps before a decode step; at 4,096 tokens each, 65,536 tokens.
MOST_IN_A_ROW = 16


class Alternate:
    """A step is either prefill or decode, alternating while there is both.

    On a device that computes the two one after the other anyway, first tokens then need not wait for other
    requests to decode. Prefill steps of whole prompts follow each other while prompts are left waiting, so
    that afterwards all decode together; at most MOST_IN_A_ROW of them, as prompts with short answers may
    arrive without end.
    """

    def __init__(self) -> None:
        self._prefills_left = MOST_IN_A_ROW

    def __call__(self, parts: StepParts) -> tuple[list[Chunk], Ints]:
        if not self._prefills_left and len(rows := self._decode(parts)):
            return [], rows
        chunks = parts.prompts()
        if not chunks:
            return chunks, self._decode(parts)
        keep = len(chunks) < parts.waiting and all(chunk.last for chunk in chunks)
        self._prefills_left = self._prefills_left - 1 if keep else 0
        return chunks, NO_INTS

    def _decode(self, parts: StepParts) -> Ints:
        rows = parts.decode()
        self._prefills_left = MOST_IN_A_ROW
        return rows


#: Decode batch sizes to which captured mixed steps are padded, and for chunked prompts how many graphs each
#: has, with other numbers of prompt tokens.
MIXED_PARTS = {16: 16, 64: 8, 128: 4, 192: 4, 256: 4}


class TakeAlong:
    """A composition where, with at least `requests` that wait or decode, every step decodes and adds whole
    prompts, `rows` tokens together at most, which keeps inter-token latencies even. With fewer requests, as
    Alternate."""

    def __init__(self, requests: int, rows: int) -> None:
        self.requests, self.rows = requests, rows
        self._turns = Alternate()

    def __call__(self, parts: StepParts) -> tuple[list[Chunk], Ints]:
        if parts.waiting + parts.decoding < self.requests:
            return self._turns(parts)
        rows = parts.decode()
        return parts.prompts(self.rows), rows


@dataclass(frozen=True)
class Policies:
    """Limits of a step: decoding requests, prompts, and prompt tokens. Then how requests are admitted,
    prompts chunked and steps composed, what steps cost where they are composed by it, and how many requests
    of one client decode in a step while another client has no more running (None: all)."""

    max_batch_size: int
    prefill_max_batch_size: int
    prefill_max_tokens: int
    admission: Admission = field(default_factory=Fifo)
    chunking: Chunking = field(default_factory=WholePrompts)
    composition: Composition = decode_first
    costs: StepCosts | None = None
    client_batch_size: int | None = None
