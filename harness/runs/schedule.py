"""Cells and the order in which they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from harness.engines.base import EngineVariant
from harness.runs.balanced_orders import balanced_orders
from harness.runs.seeds import prompt_seed, shape_seeds
from harness.schema.load import Load
from harness.schema.settings import RUNNING_SERVER, CommonSettings, OnlineSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One measurement: an engine at a load.

    `index` is its number in the run. `load_seed` is that of its prompts, which come in no other load or
    repeat. Every engine that is started here gets the same ones; a running server, whose cache may outlive
    the run, gets its own in each run. `shape_seed` is that of its times, lengths and order, which are the
    same for every engine.
    """

    index: int
    engine_variant: EngineVariant
    load: Load
    repeat: int
    load_seed: int
    shape_seed: int

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
    servers = [v.label for v in engine_variants if v.ref.name == RUNNING_SERVER]

    def seed(engine_variant: EngineVariant) -> list[int]:
        nonce = settings.prompt_nonce
        if nonce is None or engine_variant.label not in servers:
            return [settings.seed]
        return [settings.seed, nonce, servers.index(engine_variant.label)]

    return [
        Block(
            engine_variant,
            tuple(
                Cell(
                    next(index),
                    engine_variant,
                    load,
                    repeat,
                    prompt_seed([*seed(engine_variant), repeat, position]),
                    shape_seed,
                )
                for position, (load, shape_seed) in enumerate(
                    zip(settings.loads, shape_seeds(settings, repeat), strict=True)
                )
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
