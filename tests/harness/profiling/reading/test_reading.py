"""Profiles that are broken, cut off, empty or very large."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.profiling.reading.nsys_file import read_nsys
from harness.profiling.reading.timeline import TraceError
from harness.profiling.reading.torch_trace import read_torch_trace, scan

from ..conftest import totals

Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda whole: b"", "empty"),
        (lambda whole: b"{}", "no traceEvents"),
        (lambda whole: b"not json at all", "no traceEvents"),
        (lambda whole: whole[: len(whole) // 2], "in the middle"),
        (lambda whole: whole.replace(b'"ts"', b'"tz"'), "not like those of torch"),
        (lambda whole: whole.replace(b'"cpu_op"', b'"python"'), "neither operators nor kernels"),
        (lambda whole: gzip.compress(whole)[:-40], "cut off"),
        (lambda whole: b"\x1f\x8b" + whole, "cut off or damaged"),
    ],
)
def test_damaged_traces_say_what_is_wrong(damage: Damage, said: str, trace: Any, tmp_path: Path) -> None:
    for step in range(3):
        trace.cpu_step(100 * step, "roseinfer.model.forward.eager")
    path = trace.write(tmp_path / "trace.json")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TraceError, match=said):
        read_torch_trace(path)


def test_missing_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_torch_trace(tmp_path / "trace.json")
    with pytest.raises(TraceError, match="not there or empty"):
        read_nsys(tmp_path / "nsys.sqlite")


def test_files_that_are_no_nsys_export(nsys: Any, tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("this is no database" * 100)
    with pytest.raises(TraceError, match="not an export"):
        read_nsys(tmp_path / "text.sqlite")
    with pytest.raises(TraceError, match="no kernels"):
        read_nsys(nsys.close())


@pytest.mark.parametrize("window", [1, 7, 64])
def test_windows_may_end_anywhere(window: int, trace: Any, tmp_path: Path) -> None:
    trace.cpu_step(0, 'a range named "traceEvents": [1, 2] \\')
    trace.cpu_step(100, "ein Schritt: größer")
    path = trace.write(tmp_path / "trace.json", before='"note": "ends in ]", ')
    with path.open(encoding="utf-8") as whole, path.open(encoding="utf-8") as text:
        assert list(scan(path, text, window, longest=10_000)) == list(scan(path, whole))
    assert "ein Schritt: größer" in totals(read_torch_trace(path))


@pytest.mark.integration
def test_large_traces_need_little_memory(tmp_path: Path) -> None:
    """80 MB of text, read within 250 MB beyond what the interpreter itself has."""
    event = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": %d, "dur": 5,'
        ' "args": {"Call stack": "' + "x" * 700 + '"}}'
    )
    path = tmp_path / "trace.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        file.writelines((event % (10 * i)) + "," for i in range(100_000))
        file.write(event % 10**7 + "]}")
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from harness.profiling.reading.torch_trace import read_torch_trace\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = len(read_torch_trace(Path(sys.argv[1])).ops)\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    count, kilobytes = map(int, done.stdout.split())
    assert count == 100_001
    assert kilobytes < 60_000 * (resource.getpagesize() // 4096 or 1)


def test_totals_are_those_of_the_profiler(tmp_path: Path) -> None:
    """torch's own key_averages, name by name."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        for _ in range(20):
            with torch.profiler.record_function("roseinfer.model.forward.eager"):
                model(torch.randn(8, 64)).argmax(-1)
    profiled.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    found = totals(read_torch_trace(tmp_path / "trace.json.gz"))
    expected = {average.key: average for average in profiled.key_averages()}
    assert set(found) == set(expected)
    for name, (count, microseconds) in found.items():
        assert count == expected[name].count
        assert microseconds == pytest.approx(expected[name].self_cpu_time_total, rel=0.01, abs=1.0), name
