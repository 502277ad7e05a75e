"""Cells and the order in which they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import numpy as np

from harness.engines.base import EngineVariant
from harness.runs.balanced_orders import balanced_orders
from harness.schema.load import Load
from harness.schema.settings import CommonSettings, OnlineSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One measurement: an engine at a load.

    `index` is its number in the run. `load_seed` is that of its prompts, which every engine gets alike at the
    same load and repeat and which come in no other load or repeat.
    """

    index: int
    engine_variant: EngineVariant
    load: Load
    repeat: int
    load_seed: int

    def __str__(self) -> str:
        return f"{self.engine_variant.label}, {self.load}, repeat {self.repeat}"


@dataclass(frozen=True)
class Block:
    """Cells that one server answers, in this order: an engine's loads within one repeat."""

    engine_variant: EngineVariant
    cells: tuple[Cell, ...]


def plan(settings: OnlineSettings, engine_variants: list[EngineVariant]) -> list[Block]:
    """All blocks of a run, in the order in which they are measured.

    Engines go in the order of `turns`, an engine's loads from light to heavy.
    """
    index = count()
    return [
        Block(
            engine_variant,
            tuple(
                Cell(next(index), engine_variant, load, repeat, _load_seed(settings.seed, repeat, position))
                for position, load in enumerate(settings.loads)
            ),
        )
        for engine_variant, repeat in turns(engine_variants, settings)
    ]


def turns(engines: Sequence[T], settings: CommonSettings) -> list[tuple[T, int]]:
    """Engines and repeats, in the order in which they are measured.

    With `interleave`, each repeat measures every engine before the next repeat begins, in balanced orders
    drawn from the seed; without, the engines go in the order given, the repeats of each one after the other.
    """
    if not settings.interleave:
        return [(engine, repeat) for engine in engines for repeat in range(settings.repeats)]
    orders = balanced_orders(len(engines), settings.repeats, settings.seed)
    return [(engines[i], repeat) for repeat, order in enumerate(orders) for i in order]


def _load_seed(seed: int, repeat: int, load_index: int) -> int:
    """64 bits, so that no two loads of a run have the same prompts."""
    return int(np.random.SeedSequence([seed, repeat, load_index]).generate_state(1, np.uint64)[0])
