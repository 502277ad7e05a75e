"""Profiles of a model that several processes share, each with a GPU: figures of rank 0, and all beside each
other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.files import write_json
from harness.profiling.analysis import analyse
from harness.report.tables.profiles import profile_section
from harness.runs.folder import MANIFEST
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import Level, ProfileManifest, ProfileRun, RankFigures, Tool
from harness.schema.run_info import RunInfo, Versions

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FORWARD = "roseinfer.model.forward.cuda_graph_replay"


def manifest(run: Path, tool: Tool) -> Path:
    """The folder of the one capture of a run."""
    info = RunInfo(
        created="", command=[], settings=OnlineSettings(), versions=Versions(rosebench="0", python="3")
    )
    capture = ProfileRun(
        tool=tool, engine="roseinfer", label="roseinfer", cmd=[], n=1, steps=9, output_dir="profiles",
        level=Level(in_flight=4, running=3), log_path="l", wall_s=1,
    )  # fmt: skip
    write_json(run / MANIFEST, ProfileManifest(meta=info, runs=[capture]))
    (run / "profiles").mkdir()
    return run / "profiles"


@pytest.mark.parametrize("tool", ["torch", "nsys"])
def test_ranks_beside_each_other(tool: Tool, trace: Any, nsys: Any, tmp_path: Path) -> None:
    """Steps of 100 µs on each, of which a sum takes longer on rank 1; kernels of one GPU do
    not count for the other."""
    folder = manifest(tmp_path, tool)
    if tool == "nsys":
        for step in range(5):
            for rank in range(2):
                at, process = 100_000 * step, 77 + rank
                nsys.step(at, 10 * step, process, FORWARD, device=rank, second=NCCL)
        nsys.database.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 10000 WHERE deviceId = 1 AND shortName = ?",
            (nsys.text(NCCL),),
        )
        nsys.close().rename(folder / "nsys.sqlite")
        busy = [45.0, 50.0]  # a copy runs meanwhile
    else:
        for rank, name in enumerate(("trace.json", "trace.rank1.json")):
            made = type(trace)()
            for step in range(5):
                begin = 100.0 * step
                made.gpu_step(begin, 100 * step, FORWARD)
                made.add("cuda_runtime", "cudaLaunchKernel", begin + 9, 1, correlation=1000 * step + 9)
                made.add("kernel", NCCL, begin + 90, 4 + 5 * rank, correlation=1000 * step + 9, tid=7)
            made.write(folder / name)
        busy = [49.0, 54.0]
    [figures] = analyse(tmp_path).figures
    communication = [10.0, 20.0] if tool == "nsys" else [4.0, 9.0]
    assert [rank.rank for rank in figures.ranks] == [0, 1]
    for field, expected in (("busy_ms", busy), ("communication_ms", communication), ("step_ms", [100, 100])):
        assert [getattr(rank, field) * 1e3 for rank in figures.ranks] == pytest.approx(expected), field
    assert figures.steps["decode"].categories_ms["communication"] * 1e3 == pytest.approx(communication[0])
    section = profile_section(tmp_path)
    assert section is not None
    (table,) = [table for table in section["tables"] if table.name == "profile-ranks"]
    assert len(table.rows) == 2


def test_one_rank_has_no_table(trace: Any, tmp_path: Path) -> None:
    folder = manifest(tmp_path, "torch")
    for step in range(4):
        trace.gpu_step(100 * step, 100 * step, FORWARD)
    trace.write(folder / "trace.json")
    [figures] = analyse(tmp_path).figures
    assert figures.ranks == list[RankFigures]()
