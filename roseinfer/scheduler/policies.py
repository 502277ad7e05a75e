"""What a step may hold: limits, and the choices that have alternatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from roseinfer.batch import NO_INTS, Ints
from roseinfer.scheduler.admission import Admission, Fifo


@dataclass(frozen=True)
class Chunk:
    """`count` tokens of the prompt in `row`, after `context` computed ones; `last`: they complete it."""

    row: int
    context: int
    count: int
    last: bool


class Chunking(ABC):
    """How much of a prompt a step computes."""

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
    """A prompt is computed in parts of at most `size` tokens, and never more than the budget has left."""

    size: int

    def part(self, rest: int, budget: int, *, first: bool) -> int:
        return min(rest, self.size, budget)


class Prompts(Protocol):
    """Parts of prompts: as the limits say, or of `budget` tokens at most if that is less, with prompts cut
    for it or not."""

    def __call__(self, budget: int | None = None, *, cut: bool = False) -> list[Chunk]: ...


@dataclass(frozen=True)
class StepParts:
    """The two parts of a step, each made when it is called, how many requests wait for a first token, and how
    many for a next one."""

    prompts: Prompts
    decode: Callable[[], Ints]
    waiting: int
    decoding: int = 0


#: Chooses the parts of a step by calling for them: first come the prompts, then the decode rows.
Composition = Callable[[StepParts], tuple[list[Chunk], Ints]]


def decode_first(parts: StepParts) -> tuple[list[Chunk], Ints]:
    """Every step decodes; prompts take what blocks are left."""
    rows = parts.decode()
    return parts.prompts(), rows


def prefill_first(parts: StepParts) -> tuple[list[Chunk], Ints]:
    """A step that has prompts computes only them: decoding waits until no prompt can be admitted."""
    chunks = parts.prompts()
    return chunks, NO_INTS if chunks else parts.decode()


#: Steps of prompts in a row before one that decodes; at 4,096 tokens each, 65,536.
MOST_IN_A_ROW = 16


class Alternate:
    """A step computes prompts or decodes, in turns while there is both.

    Where a device does one after the other anyway, first tokens need not wait for other requests' next ones.
    Whole prompts keep the turn while a step of them leaves others waiting: decoding is done once for all.
    They keep it for MOST_IN_A_ROW steps at most: prompts with short answers may come without end.
    """

    def __init__(self) -> None:
        self._left = MOST_IN_A_ROW

    def __call__(self, parts: StepParts) -> tuple[list[Chunk], Ints]:
        if not self._left and len(rows := self._decode(parts)):
            return [], rows
        chunks = parts.prompts()
        if not chunks:
            return chunks, self._decode(parts)
        keep = len(chunks) < parts.waiting and all(chunk.last for chunk in chunks)
        self._left = self._left - 1 if keep else 0
        return chunks, NO_INTS

    def _decode(self, parts: StepParts) -> Ints:
        rows = parts.decode()
        self._left = MOST_IN_A_ROW
        return rows


#: To which requests that decode are padded in captured steps with prompts.
MIXED_SIZES = (16, 64, 128, 192, 256)


class TakeAlong:
    """Where at least `requests` wait or decode, every step decodes and takes whole prompts of up to `rows`
    tokens along: next tokens come at an even pace. Fewer take turns as in Alternate."""

    def __init__(self, requests: int, rows: int) -> None:
        self.requests, self.rows = requests, rows
        self._turns = Alternate()

    def __call__(self, parts: StepParts) -> tuple[list[Chunk], Ints]:
        if parts.waiting + parts.decoding < self.requests:
            return self._turns(parts)
        rows = parts.decode()
        return parts.prompts(self.rows), rows


class FillUp:
    """Every step decodes, and prompts fill it up, so that weights are read once for both.

    `rows`: how many requests wait or decode at most, and the rows that a step then has; the last serves for
    more. Prompts are cut to fit. Requests that decode count as captured steps have them, in MIXED_SIZES, and
    leave at least half of the rows.
    """

    def __init__(self, rows: tuple[tuple[int, int], ...]) -> None:
        self.rows = rows

    def __call__(self, parts: StepParts) -> tuple[list[Chunk], Ints]:
        decoding = parts.decode()
        return parts.prompts(self.budget(parts.waiting, len(decoding)), cut=True), decoding

    @property
    def most(self) -> int:
        """Rows of its largest steps."""
        return max(rows for _, rows in self.rows)

    def budget(self, waiting: int, decoding: int) -> int:
        """Tokens of prompts where so many requests wait, and so many decode in this step."""
        rows = next((rows for most, rows in self.rows if waiting + decoding <= most), self.rows[-1][1])
        padded = next((size for size in (0, *MIXED_SIZES) if decoding <= size), decoding)
        return max(rows - padded, rows // 2, 1)


@dataclass(frozen=True)
class Policies:
    """Limits: requests that decode in one step, prompts in one step, and prompt tokens in one step."""

    max_batch_size: int
    prefill_max_batch_size: int
    prefill_max_tokens: int
    admission: Admission = field(default_factory=Fifo)
    chunking: Chunking = field(default_factory=WholePrompts)
    composition: Composition = decode_first
