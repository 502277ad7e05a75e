"""`index.html`: which engine is best for what, by the reports in a folder, and the reports themselves.

A report carries the findings of its runs. Those of an older report are computed from the raw tables of the
run folder of its name beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from pydantic import ValidationError

from harness.errors import UsageError
from harness.files import write_whole
from harness.metrics.rankings import Ranking
from harness.report.findings import FINDINGS, Finding, findings
from harness.report.notices import ENOUGH_REPEATS
from harness.report.page import render_page
from harness.report.text.numbers import decimals, few, number
from harness.report.text.provenance import assumed
from harness.runs.reader import load_run
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.settings import SHORT_CELL_S

INDEX = "index.html"
#: The answers of a group: each metric, and what the best engine has of it.
COLUMNS = {
    METRICS[name].label: "lowest" if METRICS[name].lower_is_better else "highest"
    for name in (*latencies("headline"), *rates("headline"))
}
_HEAD_BYTES = 65536
_META = re.compile(r'<meta name="rosebench-(title|made|verdict|model|machine|findings)" content="([^"]*)">')


@dataclass(frozen=True)
class Entry:
    """A report as the list shows it. `findings` is None where its raw times are not known."""

    file: str
    title: str
    made: str
    model: str
    machine: str
    verdict: str
    findings: list[Finding] | None


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
    def found_by(self) -> str:
        """Text that a filter is looked for in, beside each load."""
        return " ".join([self.model, self.machine, *self.compared])

    @property
    def is_of_one_engine(self) -> bool:
        """Tell whether only variants of one engine were compared."""
        return len({name.partition(" (")[0] for name in self.engines}) == 1

    @property
    def is_of_several_runs(self) -> bool:
        """Tell whether reports of several runs are in it, which may disagree."""
        return len({file for _, file in self.rows}) > 1


def rankings_by(finding: Finding, label: str) -> list[Ranking]:
    """Select the rankings of a load by a metric's label: each percentile from low to high, or the rate."""
    return [
        ranking
        for ranking in finding.rankings
        if ranking.metric in METRICS and METRICS[ranking.metric].label == label
    ]


def value_text(ranking: Ranking) -> str:
    """Best value of a ranking with its unit."""
    value = ranking.best.value if ranking.best else None
    return f"{number(value, decimals([value]))} {METRICS[ranking.metric].unit}".strip()


def ratio_text(ratio: float | None) -> str:
    """Ratio to the best value: three decimals near 1, else three digits or fewer."""
    return (
        ""
        if ratio is None
        else f"{number(ratio, 3 if abs(ratio - 1) < 0.02 else min(2, decimals([ratio])))}×"
    )


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
    entries = sorted(
        (entry for entry in read if entry is not None), key=lambda entry: entry.made, reverse=True
    )
    page = render_page(
        "index.html.j2",
        ("index.js",),
        entries=entries,
        groups=_groups(entries),
        columns=COLUMNS,
        rankings_by=rankings_by,
        value_text=value_text,
        ratio_text=ratio_text,
        caveat=caveat,
        assumed=assumed,
        enough=ENOUGH_REPEATS,
    )
    write_whole(folder / INDEX, page.encode())
    return folder / INDEX


def _groups(entries: list[Entry]) -> list[Group]:
    """The findings of all reports by model and machine, one model after the other, and last where one engine
    was compared with itself; of a run that is in several reports once."""
    groups: dict[tuple[str, str], Group] = {}
    listed: list[Finding] = []
    for entry in entries:
        for finding in entry.findings or ():
            if finding not in listed:
                listed.append(finding)
                key = finding.model, finding.machine
                groups.setdefault(key, Group(*key, [])).rows.append((finding, entry.file))
    names = list(dict.fromkeys(group.name for group in groups.values()))
    return sorted(
        groups.values(), key=lambda group: (group.is_of_one_engine, names.index(group.name), group.machine)
    )


def _entry(path: Path) -> Entry | None:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", errors="replace")
    meta = {name: unescape(content) for name, content in _META.findall(head)}
    if "title" not in meta:
        return None
    carried = _carried(meta["findings"]) if "findings" in meta else None
    if carried is None:
        carried = _computed(path.with_suffix(""))
    made, model, machine, verdict = (meta.get(name, "") for name in ("made", "model", "machine", "verdict"))
    return Entry(path.name, meta["title"], made, model, machine, verdict, carried)


def _carried(text: str) -> list[Finding] | None:
    """The findings that a report carries; None where another version wrote them."""
    try:
        return FINDINGS.validate_json(text)
    except ValidationError:
        return None


def _computed(run: Path) -> list[Finding] | None:
    """The findings of the run in a folder; None where there is none with raw times."""
    try:
        return findings(load_run(run))
    except UsageError:
        return None
