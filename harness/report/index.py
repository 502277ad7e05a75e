"""`index.html`: which engine is best for what, by the reports in a folder, and the reports themselves.

A report carries the findings of its runs. One that another version wrote is listed without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from harness.files import write_whole
from harness.metrics.rankings import Ranking
from harness.report.findings import FINDINGS, Finding
from harness.report.notices import ENOUGH_REPEATS
from harness.report.page import render_page
from harness.report.text.numbers import decimals, few, number
from harness.report.text.provenance import assumed
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.settings import SHORT_CELL_S

INDEX = "index.html"
#: Heads of the answers of a group, by metric.
COLUMNS = {
    name: f"{'lowest' if METRICS[name].lower_is_better else 'highest'} {METRICS[name].label}"
    for name in (*latencies("headline"), *rates("headline"))
}
_HEAD_BYTES = 65536
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
    def is_of_one_engine(self) -> bool:
        """Tell whether only variants of one engine were compared."""
        return len({name.partition(" (")[0] for name in self.engines}) == 1

    @property
    def is_of_several_runs(self) -> bool:
        """Tell whether reports of several runs are in it, which may disagree."""
        return len({file for _, file in self.rows}) > 1


def value_text(ranking: Ranking) -> str:
    """Best value of a ranking with its unit."""
    value = ranking.best.value if ranking.best else None
    return f"{number(value, decimals([value]))} {METRICS[ranking.metric].unit}".strip()


def ratio_text(ratio: float | None) -> str:
    """Ratio to the best value: three decimals near 1, else three digits or fewer."""
    if ratio is None:
        return ""
    return f"{number(ratio, 3 if abs(ratio - 1) < 0.02 else min(2, decimals([ratio])))}×"


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
    page = render_page(
        "index.html.j2",
        ("index.js",),
        entries=entries,
        groups=_groups(entries),
        columns=COLUMNS,
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
        for finding in entry.findings:
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
    meta = dict.fromkeys(_NAMES, "") | {name: unescape(content) for name, content in _META.findall(head)}
    if not meta["title"]:
        return None
    try:
        return Entry(path.name, meta, FINDINGS.validate_json(meta["findings"]))
    except ValidationError:  # another version wrote them
        return Entry(path.name, meta, [])
