"""Making of a run in words: its command, settings, machine, and the client's calibration."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from harness.metrics.digits import per_cent
from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES
from harness.report.text.numbers import several, signed, span
from harness.runs.reader import Run
from harness.schema.base import repeat_text
from harness.schema.files import checked
from harness.schema.machines import Calibration
from harness.schema.online_settings import ClusterGroup
from harness.schema.run_info import LaunchRecord, RunInfo, TraceRecord

#: How far repeats are taken to spread where there is one.
assumed_of_rates = f"{per_cent(ASSUMED_OF_RATES)} in rates"
assumed = f"{assumed_of_rates}, " + several(
    f"{per_cent(ASSUMED_OF_LATENCIES[name])} in {name}" for name in ("p50", "p90", "p99")
)
#: Fields of a trace that are shown, in this order.
_TRACE_FACTS = (
    "name", "note", "origin", "licence", "citation", "sha256",
    "requests", "fit", "dropped", "changed", "input_tokens", "output_tokens",
)  # fmt: skip
#: What is known in bytes: of the machine, and of each GPU.
_SIZE = re.compile(r"\bmemory_(total|available|used)$")


def command(run: RunInfo) -> str:
    """The command that made the run, as a shell takes it."""
    return shlex.join(run.command)


def command_on_one_machine(run: RunInfo) -> str:
    """The command without the nodes of a cluster and the maker's folder; empty if it named no cluster."""
    if "--cluster" not in run.command:
        return ""
    left_out = {f"--{name.replace('_', '-')}" for name in ("out", *ClusterGroup.__annotations__)}
    before = ["", *run.command[:-1]]
    return shlex.join(
        word for name, word in zip(before, run.command, strict=True) if not left_out & {name, word}
    )


def order(run: Run) -> list[str]:
    """List the engines in the order in which they were measured, a text for each repeat."""
    measured = {(cell.label, cell.repeat) for cell in run.repeats}
    turns = [turn for turn in run.meta.order if turn in measured or not run.meta.interrupted]
    several = any(repeat for _, repeat in run.meta.order)
    return [
        f"{f'{repeat_text(repeat)}: ' if several else ''}{', '.join(label for label, _ in together)}"
        for repeat, together in groupby(turns, key=lambda turn: turn[1])
    ]


def code(launch: LaunchRecord) -> str:
    """`/src/engine (0123456789abcdef)`: the folder and hash of what its starts found; empty if unknown."""
    return "; ".join(f"{code.folder} ({code.sha256})" for code in launch.codes)


def ready(launch: LaunchRecord) -> str:
    """`20.1 s the first time, then 11.0 to 11.4 s`: after how long each start was ready; empty if unknown."""
    if launch.ready_s is None:
        return ""
    first, later = f"{launch.ready_s:.1f} s", launch.later_ready_s
    if not later:
        return first
    return f"{first} the first time, then {span(later, 1)} s"


def hardware(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The machine; sizes in GiB. The client's own calibration is apart."""
    without_client = {name: value for name, value in environment.items() if name != "calibration"}
    return [
        (
            name.replace("_", " "),
            f"{int(text) / 2**30:.1f} GiB" if _SIZE.search(name) and text.isdigit() else text,
        )
        for name, text in flat(without_client)
    ]


def client(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Loads that the client was measured to sustain, and its timing errors."""
    stored = environment.get("calibration")
    if not isinstance(stored, dict):
        return [("calibration", say(stored))] if stored else []
    calibration = checked(stored, Calibration, "the client's calibration in the run")
    rows = [("measured", calibration.created)]
    for ceiling in calibration.ceilings:
        name = f"ceiling with {_processes(ceiling.processes)}"
        rows.append(
            (name, f"{ceiling.requests_per_s:,.0f} requests/s, {ceiling.chunks_per_s:,.0f} chunks/s each")
        )
    for error in calibration.errors:
        ttft, itl = error.ttft_error_ms, error.itl_error_ms
        text = (
            f"TTFT {signed(ttft.p50, 2)} / {signed(ttft.p99, 2)} ms, "
            f"ITL {signed(itl.p50, 2)} / {signed(itl.p99, 2)} ms"
        )
        processes = _processes(error.processes)
        rows.append((f"timing error p50 / p99, {error.concurrency} in flight by {processes}", text))
    return rows


def _processes(count: int) -> str:
    return f"{count} client process{'' if count == 1 else 'es'}"


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as `a.b.0.c` and their text; empty ones are left out."""
    pairs = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            pairs += flat(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            pairs += flat({str(position): item for position, item in enumerate(value)}, f"{name}.")
        elif value not in (None, [], ""):
            pairs.append((name, say(value)))
    return pairs


def trace_facts(trace: TraceRecord) -> list[tuple[str, str]]:
    """Name and value of each fact about what was sent."""
    values = {name.replace("_", " "): getattr(trace, name) for name in _TRACE_FACTS}
    return flat({name: fact_text(value) for name, value in values.items() if value is not None})


def fact_text(value: Any) -> str:
    """Write what an engine reports as a person reads it: `4,096`."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else say(value)


def say(value: Any) -> str:
    """A JSON value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(say(item) for item in value) or "none"
    return value if isinstance(value, str) else json.dumps(value)
