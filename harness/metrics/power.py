"""Repeats that find a difference on this machine, by the figures of the cells so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import COMPARED, COMPARED_OF_BATCH, Estimates
from harness.metrics.intervals import Estimate
from harness.metrics.percentiles import missing
from harness.metrics.rankings import REAL
from harness.schema.load import Batch, Load
from harness.schema.metrics import METRICS
from harness.schema.results import OnlineSummary


def of_cells(cells: Iterable[OnlineSummary], looks: int = 1) -> list[Contrast]:
    """Compare engines by the figures of their cells, one a repeat; one alone with another that is like it.

    Left out is an engine at a load that has an invalid cell, or one cell: no verdict will be on it.

    Args:
        looks: How often the run may look whether it has enough repeats.
    """
    by_load: dict[Load, dict[str, list[OnlineSummary]]] = {}
    for cell in cells:
        by_load.setdefault(cell.load, {}).setdefault(cell.label, []).append(cell)
    together = []
    for load, by_label in by_load.items():
        engines = [
            _estimates(repeats, looks)
            for repeats in by_label.values()
            if len(repeats) > 1 and all(cell.valid for cell in repeats)
        ]
        pairs = combinations(engines, 2) if len(engines) > 1 else [(each, each) for each in engines]
        together += [each for pair in pairs for each in contrast(load, *pair)]
    return judged(together)


def _estimates(cells: Sequence[OnlineSummary], looks: int) -> Estimates:
    estimates = {}
    for metric, statistic in COMPARED_OF_BATCH if isinstance(cells[0].load, Batch) else COMPARED:
        values = [cell.value(metric, statistic) for cell in cells]
        if None in values:
            continue
        each = np.array(values, dtype=np.float64)
        counts = [cell.latency(metric).n for cell in cells] if METRICS[metric].is_latency else []
        lacking = max((missing(int(statistic[1:]), count) for count in counts), default=0)
        estimates[metric, statistic] = Estimate(float(each.mean()), each, missing=lacking, looks=looks)
    return estimates


def decided(contrasts: Iterable[Contrast], effect: float) -> bool:
    """Tell whether every headline comparison has a verdict, or repeats enough to find `effect`; also if none
    can be made."""
    return all(
        each.verdict in REAL or min(each.repeats) >= (each.repeats_for(effect) or np.inf)
        for each in contrasts
        if each.primary
    )
