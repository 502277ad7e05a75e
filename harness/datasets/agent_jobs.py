"""Jobs of coding agents: lengths, what prompts share, and times; no text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """A request of a job: tokens in and out, ids of the leading blocks of its input (runs of ids that follow
    each other), and the seconds between the answer before it and itself, in which tools run."""

    input_tokens: int
    output_tokens: int
    blocks: tuple[range, ...]
    think_s: float

    @property
    def block_ids(self) -> list[int]:
        return [block for run in self.blocks for block in run]


@dataclass(frozen=True)
class AgentJobs:
    """Jobs of turns. `left_out` says what of the file is not in them."""

    name: str
    jobs: tuple[tuple[AgentTurn, ...], ...]
    block_size: int
    sha256: str
    origin: str
    left_out: str | None = None


def runs_of(ids: Iterable[int]) -> tuple[range, ...]:
    """The ids in their order, those that follow each other as one range."""
    found: list[range] = []
    for number in ids:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return tuple(found)
