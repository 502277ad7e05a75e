"""How heavy a load is, and the words for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

#: What a record says of its load beside the `scale`.
IN_FLIGHT = "requests in flight of a closed loop, whose scale is 1; null: a trace"


@dataclass(frozen=True)
class LoadLevel:
    """A trace's replay at `scale`, or a closed loop of `concurrency` requests in flight, whose scale is 1.

    Levels sort by requests in flight, those of traces first, by scale; each ascending.
    """

    scale: float = 1.0
    concurrency: int | None = None

    def __str__(self) -> str:
        """`scale 0.4` or `64 in flight`."""
        return f"scale {self.number}" if self.concurrency is None else f"{self.number} in flight"

    def __lt__(self, other: LoadLevel) -> bool:
        return (self.concurrency or 0, self.scale) < (other.concurrency or 0, other.scale)

    @property
    def where(self) -> str:
        """`at scale 0.4` or `with 64 requests in flight`."""
        if self.concurrency is None:
            return f"at {self}"
        return f"with {self.number} request{'' if self.concurrency == 1 else 's'} in flight"

    @property
    def value(self) -> float:
        """The number itself, its place on an axis: above 0."""
        return self.scale if self.concurrency is None else self.concurrency

    @property
    def number(self) -> str:
        """The value as text."""
        return f"{self.scale:g}" if self.concurrency is None else str(self.concurrency)

    @property
    def head(self) -> str:
        """Of a column of such numbers."""
        return "scale" if self.concurrency is None else "in flight"

    @property
    def quantity(self) -> str:
        """What the number counts: latency by … ."""
        return "scale" if self.concurrency is None else "requests in flight"

    @property
    def axis(self) -> str:
        """Of an axis of such numbers."""
        return "scale (smaller is heavier)" if self.concurrency is None else self.quantity

    @property
    def file_name(self) -> str:
        """As part of one: `scale_0.4` or `in_flight_64`."""
        return f"{self.head.replace(' ', '_')}_{self.number}"

    @property
    def weight(self) -> float:
        """Grows from a light load to a heavy one."""
        return -self.scale if self.concurrency is None else self.concurrency


class Located(Protocol):
    """What a record says of its load. A scale of None is that of no trace."""

    concurrency: int | None

    @property
    def scale(self) -> float | None: ...


class AtLoad:
    """A record of what was measured at one load."""

    @property
    def load(self: Located) -> LoadLevel:
        return LoadLevel(1.0 if self.scale is None else self.scale, self.concurrency)


def from_light_to_heavy(levels: Iterable[LoadLevel]) -> list[LoadLevel]:
    """Each level once."""
    return sorted(set(levels), key=lambda level: level.weight)


def head_of(levels: Iterable[LoadLevel]) -> str:
    """Of a column of their numbers, of which there may be none."""
    return next(iter(levels), LoadLevel()).head


def heaviest(levels: Iterable[LoadLevel]) -> LoadLevel:
    """The smallest scale, or the most requests in flight."""
    return from_light_to_heavy(levels)[-1]
