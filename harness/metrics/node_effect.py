"""How much engines' nodes differ, as a blocking factor: each measures whole repeats of all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

from harness.metrics.samples import Group, by_load
from harness.schema.metrics import latencies


@dataclass(frozen=True)
class NodeEffect:
    """A metric's median on each node over the geometric mean of all nodes, engines and loads taken out.

    `p` is that of no difference (F-test); None where repeats are too few.
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
    found = [_effect(metric, list(by_load(groups)), nodes, names) for metric in latencies("headline")]
    return [effect for effect in found if effect is not None]


def _effect(
    metric: str, points: Sequence[Sequence[Group]], nodes: Mapping[int, str], names: Sequence[str]
) -> NodeEffect | None:
    values, groups, places = [], [], []
    for number, point in enumerate(points):
        for repeat in point:
            sample = repeat.sample(metric)
            cell = int((repeat.whole or repeat).requests["cell"].iloc[0])
            if sample.n and sample.levels["p50"] > 0 and cell in nodes:
                values.append(np.log(sample.levels["p50"]))
                groups.append(number)
                places.append(names.index(nodes[cell]))
    if len(set(places)) < len(names):
        return None
    # y = engine at a load + node, the nodes' effects summing to 0
    y, group = np.array(values), np.array(groups)
    of_group = (group[:, None] == np.unique(group)).astype(float)
    place = np.array(places)[:, None] == np.arange(len(names))
    of_node = place[:, :-1].astype(float) - place[:, -1:]
    both = np.hstack([of_group, of_node])
    solution = np.linalg.lstsq(both, y, rcond=None)[0]
    effects = solution[of_group.shape[1] :]
    effects = np.append(effects, -effects.sum())
    without = y - of_group @ np.linalg.lstsq(of_group, y, rcond=None)[0]
    rest = y - both @ solution
    freedom = len(y) - int(np.linalg.matrix_rank(both))
    p = None
    if freedom > 0 and float(rest @ rest) > 0:
        explained = (float(without @ without) - float(rest @ rest)) / (len(names) - 1)
        p = float(fdtrc(len(names) - 1, freedom, max(0.0, explained) / (float(rest @ rest) / freedom)))
    return NodeEffect(metric, dict(zip(names, map(float, np.exp(effects)), strict=True)), p)
