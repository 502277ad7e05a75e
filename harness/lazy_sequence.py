"""Long sequences whose items are made whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")

#: Items up to which a list holds them.
HELD = 1 << 15


class LazySequence(Sequence[T]):
    """`make(place)` for each place from 0 to `count - 1`, each time the same."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._count))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        places = range(self._count)[place]
        return self._make(places) if isinstance(places, int) else [self._make(each) for each in places]


def make_sequence(count: int, make: Callable[[int], T]) -> Sequence[T]:
    """A list where the items are few, else a LazySequence."""
    return [make(place) for place in range(count)] if count <= HELD else LazySequence(count, make)
