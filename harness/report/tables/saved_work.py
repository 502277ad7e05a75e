"""Tables of work that engines save: speculative decoding, by category of prompts too, and prefix caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.metrics.digits import per_cent
from harness.metrics.intervals import Measurement
from harness.metrics.samples import Group, by_load
from harness.metrics.summary import cached_slope
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.schema.results import PREFIX_BLOCK_TOKENS, OnlineSummary, PrefixHits, Speculation
from harness.schema.setting_types import SharedPrefixes

_SPECULATION = (
    "By the engine's counters over the cell. Tokens a step: the accepted ones and the one that the model "
    "adds. By position: share of steps in which the first, the second, … drafted token was accepted."
)
_CATEGORIES = (
    "Of successful requests. Tokens a chunk: of all chunks after the first; where a server sends a chunk a "
    "step, that is tokens a step."
)
_SLOPE = (
    "TTFT for 10 % more: the median slope between requests (Theil and Sen) of TTFT by the prompt's share "
    "that the engine says was cached, or else that could have been. Requests count as independent."
)
_PREFIXES = (
    f"Share of prompt tokens. Possible: an unbounded cache of blocks of {PREFIX_BLOCK_TOKENS} tokens "
    "would have held them, in the order in which requests were sent. Reported: by the engine."
)
_CACHES = (
    "From: the engine's counters of its caches, on the device, in the host's memory, on disk or in other "
    "storage, in another instance (p2p), or in a place that the engine does not name."
)


def speculation_table(cells: Sequence[Speculation], summaries: Sequence[OnlineSummary]) -> Table | None:
    """Accepted drafts beside the time between tokens, a row a cell; None where no cell drafted tokens.

    Args:
        summaries: Of each repeat, for ITL and TPOT.
    """
    if not cells:
        return None
    by_cell = {(summary.label, summary.load, summary.repeat): summary for summary in summaries}
    measured = [by_cell.get((cell.label, cell.load, cell.repeat)) for cell in cells]
    counts = [cell.count for cell in cells]
    columns = [
        *Column.cell(cells),
        Column.share("accepted", [count.accepted for count in counts]),
        Column.number("tokens a step", [count.tokens_per_step for count in counts], 2),
        Column.text(
            "by position", [" / ".join(map(per_cent, count.by_position)) or DASH for count in counts]
        ),
        Column.number("ITL p50 ms", [s.value("itl_ms", "p50") if s else None for s in measured], 2),
        Column.number("TPOT p50 ms", [s.value("tpot_ms", "p50") if s else None for s in measured], 2),
        Column.text("source", [count.source for count in counts]),
    ]
    return Table("speculation", "Speculative decoding", columns, [_SPECULATION])


def category_table(groups: Sequence[Group]) -> Table | None:
    """Speed and tokens a chunk by the dataset's category of prompts, a row an engine, load and category, of
    all repeats; None without categories."""
    rows: list[tuple[Group, str, pd.DataFrame]] = []
    for repeats in by_load(groups):
        good = pd.concat([_with_chunks(group) for group in repeats])
        if "category" in good:
            rows += [(repeats[0], str(name), of_one) for name, of_one in good.groupby("category")]
    if not rows:
        return None
    first = [group for group, *_ in rows]
    tables = [of_one for *_, of_one in rows]
    columns = [
        *Column.place(first),
        Column.text("category", [name for _, name, _ in rows]),
        Column.count("requests", [len(of_one) for of_one in tables]),
        Column.number("answer mean", [of_one["completion_tokens"].mean() for of_one in tables], 1),
        Column.number("tokens a chunk", [_quotient(of_one) for of_one in tables], 2),
        Column.number("TPOT p50 ms", [of_one["tpot_ms"].median() for of_one in tables], 2),
    ]
    return Table("categories", "Speed and tokens a step by category", columns, [_CATEGORIES])


def _with_chunks(group: Group) -> pd.DataFrame:
    """Return the successes with TPOT, and chunks and tokens after the first chunk."""
    gaps, size = group.gaps, len(group.good)
    return group.good.assign(
        tpot_ms=group.metrics["tpot_ms"],
        later_chunks=np.bincount(gaps.request, minlength=size),
        later_tokens=np.bincount(gaps.request, gaps.tokens, size),
    )


def _quotient(of_one: pd.DataFrame) -> float | None:
    chunks = of_one["later_chunks"].sum()
    return float(of_one["later_tokens"].sum() / chunks) if chunks else None


def prefix_table(
    hits: Sequence[PrefixHits], shared: SharedPrefixes | None = None, groups: Sequence[Group] = ()
) -> Table | None:
    """Possible and reported hits of the prefix cache, a row a cell; None where prompts shared nothing and no
    engine says otherwise. Of `shared` prefixes it has the wanted share, and the slope of TTFT by it.
    """
    if not any(cell.possible or cell.reported for cell in hits):
        return None
    by_cell = {(group.label, group.load, group.repeat): group for group in groups}
    slopes = [cached_slope(by_cell.get((cell.label, cell.load, cell.repeat))) for cell in hits]
    columns = [
        *Column.cell(hits),
        *([] if shared is None else [Column.share("wanted", [shared.share] * len(hits))]),
        Column.share("possible", [cell.possible if cell.prompt_tokens else None for cell in hits]),
        Column.share("reported", [cell.reported for cell in hits]),
    ]
    caches = dict.fromkeys(cache for cell in hits for cache, share in cell.by_cache.items() if share)
    notes = [_PREFIXES]
    if {*caches} - {"device"}:
        notes.append(_CACHES)
        columns += [
            Column.share(f"from {cache}", [cell.by_cache.get(cache) for cell in hits]) for cache in caches
        ]
    columns.append(Column.text("source", [cell.source for cell in hits]))
    if shared is not None:
        columns.append(Column("TTFT ms for 10 % more", [_slope(slope) for slope in slopes]))
        notes.append(_SLOPE)
    return Table("prefixes", "Prefix hit rate", columns, notes)


def _slope(slope: Measurement | None) -> Cell:
    """Make the cell of a slope, which may be of either sign."""
    if slope is None or slope.ci is None:
        return Cell(DASH)
    low, high = (f"{end:+.2f}" for end in slope.ci)
    return Cell(f"{slope.value:+.2f}", slope.value, f"{low} to {high}", ends=slope.ci)
