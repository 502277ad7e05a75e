"""`index.html`: which engine is best for what, by the reports in a folder, and the reports themselves.

A report carries the findings of its runs. One that another version wrote is listed without them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from harness.files import write_whole
from harness.metrics.rankings import CAPACITY
from harness.report.findings import FINDINGS, Finding
from harness.report.notices import ENOUGH_REPEATS
from harness.report.page import render_page
from harness.report.text.numbers import decimals, few, number
from harness.report.text.provenance import assumed
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.settings import SHORT_CELL_S

INDEX = "index.html"
#: Metrics of a load with their heads, in the order of a cell's lines.
LINES = {name: METRICS[name].label for name in (*latencies("headline"), *rates("headline"))}
_NAMES = ("title", "made", "verdict", "model", "machine", "findings")
_META = re.compile(rf'<meta name="rosebench-({"|".join(_NAMES)})" content="([^"]*)">')


class Entry(NamedTuple):
    """A report as the list shows it, by what its head says of it: a title, when it was made, and so on."""

    file: str
    meta: Mapping[str, str]
    findings: list[Finding]


@dataclass(frozen=True)
class Group:
    """Findings on one model on one machine, with the file of their report, newest first."""

    model: str
    machine: str
    rows: list[tuple[Finding, str]]

    @property
    def name(self) -> str:
        """The model's, without what its weights and settings are."""
        return self.model.partition(" ")[0].rstrip(",")

    @property
    def engines(self) -> list[str]:
        """All that were measured."""
        return list(dict.fromkeys(engine for finding, _ in self.rows for engine in finding.engines))

    @property
    def compared(self) -> list[str]:
        """The engines with the versions that were measured."""
        compared_engines = []
        for engine in self.engines:
            named = (finding.versions.get(engine) for finding, _ in self.rows)
            versions = dict.fromkeys(version for version in named if version)
            compared_engines.append(f"{engine} {' and '.join(versions)}".rstrip())
        return compared_engines

    @property
    def families(self) -> set[str]:
        """The engines without their variants."""
        return {finding.family(label) for finding, _ in self.rows for label in finding.engines}

    @property
    def billions(self) -> float:
        """Size of the model by its name, such as `qwen3-8b`; 0 of one without."""
        size = re.search(r"(\d+(?:\.\d+)?)([bm])\b", self.name.lower())
        return float(size[1]) / (1 if size[2] == "b" else 1000) if size else 0.0

    @property
    def is_of_several_runs(self) -> bool:
        """Tell whether reports of several runs are in it, which may disagree."""
        return len({file for _, file in self.rows}) > 1


class Value(NamedTuple):
    """A number of a cell: of which statistic, whether it is best by more than chance, and valid."""

    statistic: str
    value: float
    is_best: bool
    valid: bool

    @property
    def text(self) -> str:
        """Three digits or more."""
        return number(self.value, decimals([self.value]))


def cells(finding: Finding, engine: str) -> dict[str, dict[str, list[Value]]]:
    """Return the lines of an engine's cell, by the labels of its variants: values by the metric's head."""
    shown: dict[str, dict[str, list[Value]]] = {}
    for label in (label for label in finding.engines if finding.family(label).lower() == engine.lower()):
        lines = shown.setdefault(label, {})
        for ranking in finding.rankings:
            head = "carries" if ranking.metric == CAPACITY else LINES.get(ranking.metric)
            row = ranking.row(label)
            if head is not None and row is not None and row.value is not None:
                value = Value(ranking.statistic, row.value, ranking.winner == label, row.valid)
                lines.setdefault(head, []).append(value)
    return shown


def caveat(finding: Finding) -> str:
    """Say what keeps a load from being believed at sight: engines that are invalid, else its grave badges,
    and how much was measured where it is one repeat or a short one."""
    reasons = [f"{few(finding.invalid)} invalid"] if finding.invalid else [*finding.caveats]
    if finding.repeats == 1 or finding.seconds < SHORT_CELL_S:
        reasons.append(finding.measured)
    return "; ".join(reasons)


def write_index(folder: Path) -> Path:
    """List the reports in `folder`, newest run first; files that are no reports of this tool are left out."""
    read = (_entry(path) for path in sorted(folder.glob("*.html")) if path.name != INDEX)
    entries = sorted(filter(None, read), key=lambda entry: entry.meta["made"], reverse=True)
    groups = _groups(entries)
    families = {family for group in groups for family in group.families}
    engines = {family.lower(): family for family in sorted(families, reverse=True)}  # vLLM is vllm, too
    page = render_page(
        "index.html.j2",
        ("index.js",),
        entries=entries,
        groups=groups,
        engines=[engines[name] for name in sorted(engines)],
        chips=list(_chips(groups)),
        cells=cells,
        caveat=caveat,
        assumed=assumed,
        enough=ENOUGH_REPEATS,
    )
    write_whole(folder / INDEX, page.encode())
    return folder / INDEX


def _groups(entries: list[Entry]) -> list[Group]:
    """The findings of all reports by model and machine: the largest model first, of one size the newest, and
    last where one engine was compared with itself; of a run that is in several reports once."""
    groups: dict[tuple[str, str], Group] = {}
    listed: list[Finding] = []
    for entry in entries:
        for finding in entry.findings:
            if finding not in listed:
                listed.append(finding)
                key = finding.model, finding.machine
                groups.setdefault(key, Group(*key, [])).rows.append((finding, entry.file))
    names = list(dict.fromkeys(group.name for group in groups.values()))
    return sorted(
        groups.values(),
        key=lambda group: (
            *(len(group.families) == 1, -group.billions),
            *(names.index(group.name), group.machine),
        ),
    )


def _chips(groups: list[Group]) -> Iterator[str]:
    """Yield words that a filter is likely to have: models, GPUs, kinds of load."""
    yield from dict.fromkeys(group.name for group in groups)
    machines = " ".join(group.machine for group in groups)
    yield from dict.fromkeys(re.findall(r"NVIDIA (\w+)", machines))
    loads = " ".join(finding.load for group in groups for finding, _ in group.rows)
    yield from (words for words in ("in flight", "requests/s", "within") if words in loads)


def _entry(path: Path) -> Entry | None:
    with path.open(encoding="utf-8", errors="replace") as file:
        head = "".join(takewhile(lambda line: "</head>" not in line, file))
    meta = dict.fromkeys(_NAMES, "") | {name: unescape(content) for name, content in _META.findall(head)}
    if not meta["title"]:
        return None
    try:
        return Entry(path.name, meta, FINDINGS.validate_json(meta["findings"]))
    except ValidationError:  # another version wrote them
        return Entry(path.name, meta, [])
