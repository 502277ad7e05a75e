"""Cells and the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from harness.engines.base import EngineVariant
from harness.runs.balanced_orders import balanced_orders
from harness.runs.journal import JournalEntry
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.repeat_number import repeat_text
from harness.schema.settings import CommonSettings
from harness.traces.sampling import prompt_seed, shape_seeds

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One measurement: an engine at a load.

    `index` is its number in the run. `load_seed` is that of its prompts, which come in no other load or
    repeat. Every engine that is started here gets the same ones; a running server, whose cache may outlive
    the run, gets its own in each run. `shape_seed` is that of its times, lengths and order, which are the
    same for every engine. `start` is which start of the engine's server measures it, in a search.
    """

    index: int
    engine_variant: EngineVariant
    load: Load
    repeat: int
    load_seed: int
    shape_seed: int
    start: int | None = None

    def __str__(self) -> str:
        return f"{self.engine_variant.label}, {self.load}, {repeat_text(self.repeat)}"


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
    seeds = {v.label: engine_seed(settings, v, engine_variants) for v in engine_variants}
    return [
        Block(
            engine_variant,
            tuple(
                Cell(
                    next(index),
                    engine_variant,
                    load,
                    repeat,
                    prompt_seed([*seeds[engine_variant.label], repeat, position]),
                    shape_seed,
                )
                for position, (load, shape_seed) in enumerate(
                    zip(settings.loads, shape_seeds(settings.seed, repeat, len(settings.loads)), strict=True)
                )
            ),
        )
        for engine_variant, repeat in turns(engine_variants, settings)
    ]


def engine_seed(
    settings: OnlineSettings, engine_variant: EngineVariant, every: Sequence[EngineVariant]
) -> list[int]:
    """What the seeds of an engine's prompts begin with."""
    nonce = settings.prompt_nonce
    if nonce is None or engine_variant.ref.name != RUNNING_SERVER:
        return [settings.seed]
    servers = [other.label for other in every if other.ref.name == RUNNING_SERVER]
    return [settings.seed, nonce, servers.index(engine_variant.label)]


def turns(engines: Sequence[T], settings: CommonSettings) -> list[tuple[T, int]]:
    """Engines and repeats, in the order in which they are measured.

    With `interleave`, each repeat measures every engine before the next repeat begins, in balanced orders
    drawn from the seed; without, the engines go in the order given, the repeats of each one after the other.
    """
    if not settings.interleave:
        return [(engine, repeat) for engine in engines for repeat in range(settings.repeats)]
    orders = balanced_orders(len(engines), settings.repeats, settings.seed)
    return [(engines[i], repeat) for repeat, order in enumerate(orders) for i in order]


def measured_blocks(engine_variants: Sequence[EngineVariant], entries: Iterable[JournalEntry]) -> list[Block]:
    """The blocks of a search, of which only the journal knows. Their seeds are not needed any more."""
    variants = {variant.label: variant for variant in engine_variants}
    blocks: dict[tuple[str, int | None], list[Cell]] = {}
    for entry in entries:
        if variant := variants.get(entry.label):
            cell = Cell(entry.cell, variant, entry.load, entry.repeat, 0, 0, entry.start)
            blocks.setdefault((entry.label, entry.start), []).append(cell)
    return [Block(cells[0].engine_variant, tuple(cells)) for cells in blocks.values()]
