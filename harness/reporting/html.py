"""The report: one self-contained HTML file, from runs and their figures."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.metrics.glossary import GLOSSARY
from harness.reporting import made, tables
from harness.reporting.bands import HEADLINE
from harness.reporting.facts import facts, title
from harness.reporting.figures import Figures
from harness.reporting.notices import Notice, notices
from harness.reporting.run import OfflineRun, OnlineRun, Run
from harness.reporting.style import Look, looks, on_dark
from harness.reporting.svg import Plot, css_color
from harness.reporting.table import Column, Table
from harness.reporting.verdict import verdict
from harness.reporting.winners import Winners, winners
from harness.spec.results import RunInfo

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Chapter:
    """What the template shows of one run."""

    run: Run
    figures: Figures
    styles: dict[str, Look]

    @property
    def online(self) -> bool:
        return isinstance(self.run, OnlineRun)

    @property
    def meta(self) -> RunInfo:
        return self.run.meta

    @property
    def name(self) -> str:
        return self.run.path.name

    @property
    def title(self) -> str:
        return title(self.run)

    @property
    def facts(self) -> list[tuple[str, str]]:
        return facts(self.run)

    @property
    def notices(self) -> list[Notice]:
        return notices(self.run)

    @property
    def verdict(self) -> list[str]:
        return verdict(self.run)

    @property
    def winners(self) -> Winners:
        return (
            winners(self.run.pooled, self.run.results.comparisons) if isinstance(self.run, OnlineRun) else {}
        )

    @property
    def repeats(self) -> int:
        """The most repeats that any engine has."""
        found = self.run.repeats if isinstance(self.run, OnlineRun) else self.run.results.results
        return max((one.repeat or 0 for one in found), default=0) + 1

    @property
    def headline(self) -> Table:
        if isinstance(self.run, OfflineRun):
            return tables.offline(self.run.results.results)
        return tables.headline(self.run.pooled, self.winners)

    @property
    def latencies(self) -> dict[str, Table]:
        assert isinstance(self.run, OnlineRun)
        return {metric: tables.latency_split(self.run.pooled, metric, self.winners) for metric in HEADLINE}

    @property
    def throughput(self) -> Table:
        assert isinstance(self.run, OnlineRun)
        return tables.throughput(self.run.pooled)

    @property
    def each_repeat(self) -> Table:
        if isinstance(self.run, OfflineRun):
            return tables.offline_repeats(self.run.results.results)
        return tables.repeats(self.run.repeats)


def render(runs: Sequence[tuple[Run, Figures]]) -> str:
    """The page. The same runs give the same text."""
    chapters = [Chapter(run, figures, _styles(run)) for run, figures in runs]
    environment, script = _environment(), _read("report.js")
    unique = count()

    def inline(plot: Plot) -> Markup:
        return plot.inline(f"f{next(unique)}")

    return environment.get_template("report.html.j2").render(
        chapters=chapters,
        glossary=GLOSSARY,
        made=made,
        inline=inline,
        color=css_color,
        dark={look.color: on_dark(look.color) for chapter in chapters for look in chapter.styles.values()},
        css=Markup(_read("report.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _styles(run: Run) -> dict[str, Look]:
    found = run.pooled if isinstance(run, OnlineRun) else run.results.results
    return looks((one.engine, one.label) for one in found)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["runs"] = _runs
    return environment


def _runs(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    """Neighbouring columns that share a group."""
    return [(group, list(members)) for group, members in groupby(columns, key=lambda column: column.group)]


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
