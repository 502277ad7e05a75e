"""CPU time and energy of cells, for each output token."""

from __future__ import annotations

from typing import Any

import pytest

from harness.report.tables.rates import costs_table
from harness.schema.machines import GpuLoad, MachineLoad
from harness.schema.setting_types import Window
from tests.harness.metrics.conftest import summaries


def spent(
    cpu_s: float | None, *joules: float | None, processors: float | None = None, idle: float | None = None
) -> MachineLoad:
    return MachineLoad(
        seconds=8, samples=9, cpus=2, own_cpu_s=9, engine_cpu_s=cpu_s, foreign_cores_mean=0,
        foreign_cores_max=0, steal_share=0, cpu_joules=processors, idle_watts=idle,
        gpus=[GpuLoad(joules=energy) for energy in joules],
    )  # fmt: skip


def rows(cells: int) -> list[dict[str, Any]]:
    """Two requests of four tokens and one that failed, in each repeat."""
    good = {"chunks": [(0.1, 1), (0.2, 3)]}
    failed = {"chunks": [(0.1, 1)], "error": "timeout"}
    return [row | {"cell": cell, "repeat": cell} for cell in range(cells) for row in (good, good, failed)]


def test_all_repeats_have_the_sum_and_each_token_its_part() -> None:
    machines = {0: spent(1.0, 100.0, 60.0), 1: spent(3.0, 200.0, 40.0)}
    first, second, pooled = summaries(rows(2), machines=machines)
    assert (first.engine_cpu_s, first.joules) == (1.0, 160.0)
    assert (first.cpu_ms_per_output_token, first.joules_per_output_token) == (125.0, 20.0)
    assert (second.engine_cpu_s, pooled.engine_cpu_s, pooled.joules) == (3.0, 4.0, 400.0)
    assert (pooled.cpu_ms_per_output_token, pooled.joules_per_output_token) == (250.0, 25.0)


def test_what_is_not_known_of_every_cell_is_not_known() -> None:
    pooled = summaries(rows(2), machines={0: spent(1.0, 5.0), 1: spent(None, None)})[-1]
    assert (pooled.engine_cpu_s, pooled.joules, pooled.cpu_ms_per_output_token) == (None, None, None)
    assert summaries(rows(1))[-1].engine_cpu_s is None


def test_without_a_gpu_the_processors_count_and_without_a_token_there_is_no_part_of_one() -> None:
    pooled = summaries(rows(1), machines={0: spent(1.0, processors=24.0)})[-1]
    assert pooled.joules_per_output_token == 3.0
    failed = [{"chunks": [], "error": "timeout", "t_end": 1.0}]
    pooled = summaries(failed, machines={0: spent(1.0)})[-1]
    assert (pooled.engine_cpu_s, pooled.cpu_ms_per_output_token) == (1.0, None)


def test_idle_power_is_taken_off_and_never_more_than_all() -> None:
    """Eight seconds at 5 W; the second cell took less than that."""
    machines = {0: spent(1.0, 160.0, idle=5.0), 1: spent(1.0, 30.0, idle=5.0)}
    first, second, pooled = summaries(rows(2), machines=machines)
    assert (first.joules_above_idle, second.joules_above_idle, pooled.joules_above_idle) == (120, 0, 120)
    assert first.joules_above_idle_per_output_token == 15 and pooled.joules_above_idle_per_output_token == 7.5
    assert first.joules_per_request == 80 and pooled.joules_per_request == 47.5
    assert summaries(rows(1), machines={0: spent(1.0, 160.0)})[-1].joules_above_idle is None


def test_repeats_give_the_intervals_of_energy() -> None:
    machines = {cell: spent(1.0, joules, idle=5.0) for cell, joules in enumerate((160.0, 168.0, 152.0))}
    *_, pooled = summaries(rows(3), machines=machines)
    for name in ("joules_per_output_token", "joules_above_idle_per_output_token", "joules_per_request"):
        low, high = getattr(pooled, f"{name}_ci")
        assert low < getattr(pooled, name) < high
    low, high = pooled.joules_per_output_token_ci or (0, 0)
    assert pooled.interval("joules_per_output_token", "joules_per_output_token") == (low, high)
    assert (low, high) == pytest.approx((17.68, 22.62), abs=0.05)
    table = costs_table([pooled], machines)
    assert table is not None and table.lines[0][-1].startswith("80.0 (")
    assert table.notes[-1] == "Idle before the engines were started: 5.0 W."
    assert summaries(rows(1), machines=machines)[-1].joules_per_output_token_ci is None


def test_the_table_says_unknown() -> None:
    known = summaries(rows(1), machines={0: spent(1.0)})[-1:]
    table = costs_table(known)
    assert table is not None and not any("bove idle" in note for note in table.notes)
    [line] = table.lines
    assert list(line)[-4:] == ["1.0", "unknown", "125", "unknown"]
    assert costs_table(summaries(rows(1))) is None


def test_windows_do_not_change_what_a_cell_cost() -> None:
    cut = Window(start_s=0.15, end_s=0.3)
    [summary, _] = summaries(rows(1), machines={0: spent(1.0)}, cut=cut)
    assert summary.cpu_ms_per_output_token == pytest.approx(125.0)
