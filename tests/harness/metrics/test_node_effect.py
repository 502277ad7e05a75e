"""The effect of a node is found with engines and loads taken out, and none is found where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from harness.metrics.node_effect import NodeEffect, node_effects
from harness.metrics.samples import split
from harness.report.tables.cells import node_effect_table
from tests.harness.metrics.conftest import build

ENGINES, REPEATS = {"a": 0.01, "b": 0.05}, 8
NODES = {cell: f"n{cell % REPEATS % 2}" for cell in range(len(ENGINES) * REPEATS)}


def cells(slower: float, seed: int = 1, own: float = 0.01, common: float = 0.0) -> list[dict[str, object]]:
    """Repeats of two engines, on n0 and n1 in turn, of which n1 is slower by that factor.

    Args:
        own: the spread of each cell's logarithm.
        common: that of what both cells of a repeat have in common.
    """
    noise = np.random.default_rng(seed)
    of_repeat = noise.normal(0, common, REPEATS)
    rows = []
    for cell, node in NODES.items():
        engine = list(ENGINES)[cell // REPEATS]
        factor = slower if node == "n1" else 1.0
        ttft = ENGINES[engine] * factor * np.exp(noise.normal(0, own) + of_repeat[cell % REPEATS])
        chunks = [(ttft + 0.01 * k, 1) for k in range(3)]
        name = {"engine": engine, "label": engine, "cell": cell, "repeat": cell % REPEATS}
        rows += [name | {"request": request, "chunks": chunks} for request in range(5)]
    return rows


def ttft(effects: list[NodeEffect]) -> NodeEffect:
    return next(effect for effect in effects if effect.metric == "ttft_ms")


def test_a_slower_node_is_found() -> None:
    found = ttft(node_effects(split(*build(cells(1.21))), NODES))
    assert found.ratios == {"n0": pytest.approx(1 / 1.1, rel=0.01), "n1": pytest.approx(1.1, rel=0.01)}
    assert found.p < 1e-6


def test_p_is_uniform_where_nodes_are_equal() -> None:
    p = [ttft(node_effects(split(*build(cells(1.0, seed))), NODES)).p for seed in range(20)]
    assert sum(value < 0.05 for value in p) <= 5 and 0.25 < np.mean(p) < 0.75


def test_cells_of_a_repeat_that_are_alike_count_once() -> None:
    both = cells(1.1, own=0.0, common=0.1)
    of_both, of_one = (
        ttft(node_effects(split(*build(rows)), NODES))
        for rows in (both, [row for row in both if row["engine"] == "a"])
    )
    assert of_both.p == pytest.approx(of_one.p) and of_both.ratios == pytest.approx(of_one.ratios)


def test_one_node_has_no_effect() -> None:
    groups = split(*build(cells(1.0)))
    assert node_effects(groups, dict.fromkeys(NODES, "n0")) == []
    assert node_effect_table(groups, {}) is None
    table = node_effect_table(groups, NODES)
    assert table.headers[1:3] == ["n0", "n1"] and table.rows
