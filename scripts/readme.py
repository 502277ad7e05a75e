"""Write the results of published runs into README.md: `python -m scripts.readme [--check]`.

The table stands between two comments, and is made from the stored results in reports/. With --check nothing
is written, and the exit code is 1 where the README is not what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.engines.registry import ENGINES
from harness.metrics.rankings import best_labels
from harness.runs.folder import ONLINE_RESULTS
from harness.schema.files import read_stored
from harness.schema.load import ClosedLoop
from harness.schema.results import OnlineResults, OnlineSummary

ROOT = Path(__file__).resolve().parents[1]
README, REPORTS = ROOT / "README.md", ROOT / "reports"
BEGIN, END = "<!-- results: python -m scripts.readme -->\n", "<!-- end of results -->\n"
HEAD = """\
| model and machine | load | engine | output tok/s | TTFT p50 / p90 / p99, ms | TPOT p50 / p90 / p99, ms |
|---|---|---|---:|---:|---:|
"""
RATE, LATENCIES, PERCENTILES = "output_tok_per_s", ("ttft_ms", "tpot_ms"), ("p50", "p90", "p99")


class Shown(NamedTuple):
    """A published run of which a load is shown: the number in flight, or the scale of its trace."""

    report: str
    what: str
    load: float


SHOWN = (
    Shown("h200-qwen3-8b", "Qwen3-8B, bf16, one H200; 1,024 tokens in, 128 out", 1),
    Shown("h200-qwen3-8b", "the same", 64),
    Shown("h200-llama-3.1-8b", "Llama-3.1-8B, bf16, one H200; a real trace (Azure)", 0.8),
    Shown("h200-x2-qwen3-32b", "Qwen3-32B, bf16, two H200s; 1,024 tokens in, 128 out", 64),
    Shown("cpu-smollm2-135m", "SmolLM2-135M, bf16, 2 CPU cores; 128 tokens in, 64 out", 8),
)


def rows(shown: Shown) -> Iterator[str]:
    """Yield a row for each engine, by name; values that beat all others but each other are bold."""
    results = read_stored(REPORTS / shown.report / ONLINE_RESULTS, OnlineResults)
    pooled = [summary for summary in results.summaries if summary.repeat is None]
    best = best_labels(pooled, results.comparisons)
    versions = {launch.label: launch.version for launch in results.meta.launches}
    engines = [summary for summary in pooled if summary.load.value == shown.load]
    first = f"[{shown.what}](reports/{shown.report}.html)", load_text(engines[0])
    for summary in sorted(engines, key=lambda engine: engine.label.lower()):

        def cell(metric: str, statistic: str, summary: OnlineSummary = summary) -> str:
            text = digits(summary.value(metric, statistic))
            leads = summary.label in best.get((summary.load, metric, statistic), ())
            return f"**{text}**" if leads else text

        latencies = [" / ".join(cell(metric, name) for name in PERCENTILES) for metric in LATENCIES]
        named = ENGINES.get(summary.label)  # a running server has such a label
        engine = f"{named.display if named else summary.label} {versions[summary.label]}"
        yield f"| {' | '.join((*first, engine, cell(RATE, RATE), *latencies))} |\n"
        first = "", ""


def load_text(summary: OnlineSummary) -> str:
    """Return the words for a load: requests in flight, or requests a second of a trace."""
    load = summary.load
    return (
        f"{load.value:g} in flight"
        if isinstance(load, ClosedLoop)
        else f"{summary.offered_req_per_s:.3g} requests/s"
    )


def digits(value: float | None) -> str:
    """Return a value with three digits, or whole from 100 on."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table() -> str:
    """Return the whole table."""
    return HEAD + "".join(line for shown in SHOWN for line in rows(shown))


def main() -> int:
    """Write the table, or check it."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    written = before + BEGIN + table() + END + after
    if "--check" in sys.argv[1:]:
        return int(written != text)
    README.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
