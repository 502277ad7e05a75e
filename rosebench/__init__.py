"""Results of `bench` as tables of pandas.

    import rosebench

    run = rosebench.load("outputs/benchmarks/serving/online_20261129_135727")
    run.requests.groupby(["engine", "load"]).ttft_ms.quantile([0.5, 0.9, 0.99])
    run.results.query("metric == 'output_tok_per_s'")
    run.compare("vllm", "sglang")

Everything is computed from the raw times of the run, as in its report.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd

from harness import __version__
from harness.errors import BenchError, UsageError, did_you_mean
from harness.report.answer import answer
from harness.report.results_csv import result_rows
from harness.runs.reader import Run, load_run
from harness.schema.base import Verdict

__all__ = ["BenchError", "LoadedRun", "__version__", "load"]

#: What B is where A is this.
_OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
_REQUEST_COLUMNS = ["request", "input_tokens", "output_tokens", "error"]


def load(path: str | Path) -> LoadedRun:
    """Read the folder of a finished run.

    Raises:
        BenchError: It holds none, or a file in it is missing or broken.
    """
    return LoadedRun(load_run(path))


class LoadedRun:
    """A run of `bench online`, `offline`, `search` or `tune`, with its results."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self._run.path

    @property
    def engines(self) -> list[str]:
        """Labels of the engines with a result, as in the report."""
        return [label for _, label in self._run.engines]

    @property
    def answer(self) -> str:
        """The sentences with which the report begins."""
        return " ".join(map(str, answer(self._run)))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request that was measured, failures included.

        `engine` is its label. `load` is a number, as `load_kind` says: requests in flight, requests/s, or the
        scale of a trace. `repeat` and `request` count from 0. `sent_s` is in seconds since the cell's start;
        `ttft_ms`, `tpot_ms`, `e2e_ms` and the other latencies of a request are in ms, NaN where there is
        none. `input_tokens` and `output_tokens` were asked for, `sent_tokens` came. `error` is the kind of a
        failure, else null.
        """
        tables = []
        for group in self._run.groups:
            rows = group.requests
            table = rows[_REQUEST_COLUMNS].assign(
                engine=group.label,
                load=group.load.value,
                load_kind=group.load.kind,
                repeat=group.repeat,
                sent_s=rows["t_sent"],
                sent_tokens=rows["completion_tokens"],
            )
            tables.append(table.join(group.metrics))
        if not tables:
            return pd.DataFrame(columns=["engine", "load", "load_kind", "repeat", *_REQUEST_COLUMNS])
        requests = pd.concat(tables, ignore_index=True)
        first = ["engine", "load", "load_kind", "repeat", "request"]
        return requests[[*first, *(name for name in requests if name not in first)]]

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row a number, as in `results.csv`.

        The value of a metric's statistic, in `unit`, with its 95 % interval from `lo` to `hi`, by engine and
        load. Without a repeat it is of all repeats together.
        """
        return pd.DataFrame(result_rows(self._run))

    def compare(self, a: str, b: str) -> pd.DataFrame:
        """Compare two engines of the run, each by its label or its name: a row a load, metric and statistic.

        `ratio` is the value of A divided by that of B, `lo` to `hi` its 95 % interval. `verdict` is A's:
        better, worse, no difference or not enough data, at 5 % for all comparisons of the run together.

        Raises:
            BenchError: One of them is not in the run.
        """
        labels = self._label(a), self._label(b)
        rows = []
        for found in self._run.results.comparisons:
            if {found.a, found.b} != {*labels} or found.a == found.b:
                continue
            values, ratio, ends, verdict = (
                (found.value_a, found.value_b),
                found.ratio,
                found.ci,
                found.verdict,
            )
            if found.a != labels[0]:
                values, ratio, verdict = values[::-1], 1 / ratio, _OPPOSITE.get(verdict, verdict)
                ends = None if ends is None else (1 / ends[1], 1 / ends[0])
            rows.append(
                {"load": found.load.value, "load_kind": found.load.kind, "metric": found.metric}
                | {"statistic": found.statistic, **dict(zip(labels, values, strict=True)), "ratio": ratio}
                | dict(zip(("lo", "hi"), ends or (None, None), strict=True))
                | {"verdict": verdict}
            )
        return pd.DataFrame(rows)

    def _label(self, name: str) -> str:
        labels = {label: label for label in self.engines} | dict(reversed(self._run.engines))
        if name not in labels:
            meant = did_you_mean(name, labels)
            raise UsageError(
                f"{self.path} has no engine {name!r}", f"{meant}it has {', '.join(self.engines)}"
            )
        return labels[name]
