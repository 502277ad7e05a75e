"""Difference of engines' nodes as a blocking factor: each measures whole repeats of all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from harness.metrics.samples import Group, by_load
from harness.schema.metrics import latencies


@dataclass(frozen=True)
class NodeEffect:
    """A metric's median on each node over the geometric mean of all nodes, engines and loads taken out.

    `p` is that of no difference (F-test between repeats); None where they are too few.
    """

    metric: str
    ratios: dict[str, float]
    p: float | None


def node_effects(groups: Sequence[Group], nodes: Mapping[int, str]) -> list[NodeEffect]:
    """The effect of the node on each headline latency; nothing where one node measured all.

    Args:
        groups: Of each repeat, as `split` gives them.
        nodes: The engine's, by cell.
    """
    names = sorted(set(nodes.values()))
    if len(names) < 2:
        return []
    effects = [_effect(metric, list(by_load(groups)), nodes, names) for metric in latencies("headline")]
    return [effect for effect in effects if effect is not None]


def _effect(
    metric: str, points: Sequence[Sequence[Group]], nodes: Mapping[int, str], names: Sequence[str]
) -> NodeEffect | None:
    rows = [
        (np.log(sample.levels["p50"]), number, names.index(nodes[repeat.cell]), repeat.repeat)
        for number, point in enumerate(points)
        for repeat in point
        if (sample := repeat.sample(metric)).n and sample.levels["p50"] > 0 and repeat.cell in nodes
    ]
    if len({place for *_, place, _ in rows}) < len(names):
        return None
    values, groups, places, repeats = zip(*rows, strict=True)
    # y = engine at a load + node, the nodes' effects summing to 0
    y, group = np.array(values), np.array(groups)
    of_group = (group[:, None] == np.unique(group)).astype(float)
    place = np.array(places)[:, None] == np.arange(len(names))
    of_node = place[:, :-1].astype(float) - place[:, -1:]
    solution = np.linalg.lstsq(np.hstack([of_group, of_node]), y, rcond=None)[0]
    effects = solution[of_group.shape[1] :]
    effects = np.append(effects, -effects.sum())
    rest = y - of_group @ solution[: of_group.shape[1]]
    p = _p_of_no_difference(rest, places, repeats)
    return NodeEffect(metric, dict(zip(names, map(float, np.exp(effects)), strict=True)), p)


def _p_of_no_difference(
    rest: npt.NDArray[np.float64], places: Sequence[int], repeats: Sequence[int | None]
) -> float | None:
    """Return p of logarithms without the effects of engines and loads.

    Cells of a repeat have machine and minutes in common, so their mean counts once.
    """
    of_repeat: dict[tuple[int, int | None], list[float]] = {}
    for value, node, repeat in zip(rest.tolist(), places, repeats, strict=True):
        of_repeat.setdefault((node, repeat), []).append(value)
    means = [
        np.array([fmean(values) for (at, _), values in of_repeat.items() if at == node])
        for node in sorted(set(places))
    ]
    if not any(np.ptp(node) for node in means):
        return None
    from scipy.stats import f_oneway  # half a second to import

    return float(f_oneway(*means).pvalue)
