"""Profiles made by hand, whose figures are known."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.profiling.reading.figures import _merge, self_times
from harness.profiling.reading.timeline import Timeline


@dataclass
class TraceMaker:
    """A torch trace of steps: times in µs, every step alike."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, category: str, name: str, start: float, duration: float, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X", "cat": category, "name": name, "pid": 1, "tid": args.pop("tid", 1),
                "ts": start, "dur": duration, "args": args,
            }
        )  # fmt: skip

    def cpu_step(self, at: float, name: str, extra: Sequence[tuple[str, float]] = ()) -> None:
        """A forward of 60 µs with 30 µs of matmul, of which 5 in a copy inside it, and 10 of attention."""
        self.add("user_annotation", name, at, 60)
        self.add("cpu_op", "aten::linear", at + 5, 30)
        self.add("cpu_op", "aten::copy_", at + 10, 5)
        self.add("cpu_op", "aten::scaled_dot_product_attention", at + 40, 10)
        for position, (op, duration) in enumerate(extra):
            self.add("cpu_op", op, at + 62 + 10 * position, duration)

    def gpu_step(self, at: float, number: int, name: str) -> None:
        """Launched within 10 µs of the host: two overlapping kernels and a copy, 40 µs later."""
        self.add("user_annotation", name, at, 20)
        for kind, kernel, offset, duration in (
            ("kernel", "nvjet_hsh_64x8", 40, 30),
            ("kernel", "flash_fwd_splitkv_kernel", 60, 20),
            ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 85, 5),
        ):
            link = 10 * number + offset
            self.add("cuda_runtime", "cudaLaunchKernel", at + offset / 10, 1, correlation=link)
            self.add(kind, kernel, at + offset, duration, correlation=link, tid=7)

    def write(self, path: Path, before: str = '"schemaVersion": 1, ') -> Path:
        text = ",\n".join(json.dumps(event) for event in self.events)
        path.write_text(f'{{{before}"traceEvents": [\n{text}\n], "traceName": "made"}}')
        return path


@pytest.fixture
def trace() -> TraceMaker:
    return TraceMaker()


@dataclass
class NsysMaker:
    """An export of nsys with the tables that its documentation describes. Times in ns."""

    path: Path

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(self.path)
        self.texts: dict[str, int] = {}
        for table, columns in {
            "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
            "CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, deviceId INT, streamId INT, "
            "correlationId INT, globalPid INT, demangledName INT, shortName INT, graphNodeId INT",
            "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT, end INT, deviceId INT, streamId INT, "
            "correlationId INT, globalPid INT, bytes INT, copyKind INT",
            "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, globalTid INT, correlationId INT, nameId INT",
            "NVTX_EVENTS": "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT",
        }.items():
            self.database.execute(f"CREATE TABLE {table} ({columns})")

    def text(self, value: str) -> int:
        if value not in self.texts:
            self.texts[value] = len(self.texts) + 1
            self.database.execute("INSERT INTO StringIds VALUES (?, ?)", (self.texts[value], value))
        return self.texts[value]

    def insert(self, table: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def step(
        self,
        at: int,
        link: int,
        process: int,
        marked: str | None,
        device: int = 0,
        second: str = "paged_decode_kernel",
    ) -> None:
        """A graph launch of 5 µs that runs a 30 µs and a 10 µs kernel, and a copy of 5 µs."""
        thread = process << 24 | 1
        if marked is not None:
            self.insert("NVTX_EVENTS", at, at + 20_000, 59, marked, None, thread)
        launch = self.text("cudaGraphLaunch_v10000")
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", at + 1_000, at + 6_000, thread, link, launch)
        for offset, duration, name in ((10, 30, "nvjet_hsh_64x8"), (40, 10, second)):
            start = at + offset * 1_000
            self.insert(
                "CUPTI_ACTIVITY_KIND_KERNEL", start, start + duration * 1_000, device, 7, link, process << 24,
                self.text(f"void {name}<half>(int)"), self.text(name), None,
            )  # fmt: skip
        copy = self.text("cudaMemcpyAsync_v3020")
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", at + 7_000, at + 8_000, thread, link + 1, copy)
        self.insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", at + 55_000, at + 60_000, device, 7, link + 1, process << 24, 64, 2
        )

    def close(self) -> Path:
        self.database.commit()
        self.database.close()
        return self.path


@pytest.fixture
def nsys(tmp_path: Path) -> NsysMaker:
    return NsysMaker(tmp_path / "nsys.sqlite")


def totals(timeline: Timeline) -> dict[str, tuple[int, float]]:
    """Count and self time in µs of operators and ranges, as torch's `key_averages` counts them."""
    spans = _merge(timeline.ops, timeline.ranges, timeline.calls)
    sums: dict[str, tuple[int, float]] = {}
    for number, us in zip(spans.name.tolist(), self_times(spans).tolist(), strict=True):
        count, total = sums.get(timeline.names[number], (0, 0.0))
        sums[timeline.names[number]] = count + 1, total + us
    return sums
