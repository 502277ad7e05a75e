"""Runs in, files out: the report is one self-contained HTML file, of one run or several and their charts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from harness.errors import UsageError
from harness.files import write_whole
from harness.plain_text import one_line
from harness.report.answer import answer, terms
from harness.report.charts.chart import Chart, View, data_block
from harness.report.charts.looks import Look, looks, on_dark
from harness.report.charts.run_charts import Charts, charts
from harness.report.compared import (
    Choice,
    choices,
    compared_table,
    first_choice,
    gaps_of,
    is_chosen_of,
    more,
    pairs,
    verdict,
)
from harness.report.decision import NOTHING, Asked, decide
from harness.report.findings import FINDINGS, findings
from harness.report.notices import Badge, badges, notices
from harness.report.page import render_page
from harness.report.results_csv import results_csv
from harness.report.sections import PAGE_ONLY, sections
from harness.report.several import Change, changes, overview
from harness.report.several import together as together_of
from harness.report.tables.comparisons import ratios
from harness.report.tables.fairness import side_by_side, sources
from harness.report.tables.profiles import profile_section
from harness.report.tables.rates import rates_of
from harness.report.tables.table import Table
from harness.report.text import heading, provenance
from harness.report.text.heading import facts, title
from harness.report.wording import Sentence
from harness.runs.reader import Run
from harness.schema.load import Load, from_light_to_heavy
from harness.schema.metric import Metric
from harness.schema.metrics import LATENCIES, METRICS, rates


def write_report(
    runs: Sequence[Run], out: Path, asked: Asked = NOTHING, choice: Choice | None = None
) -> Path:
    """Render one or several runs into the HTML file `out`, one chapter a run, and return it.

    Of several online runs the later ones are compared with the first.

    Args:
        asked: Limits and prices, instead of those that the runs were made with.
        choice: A choice in the first of the runs, with which the page opens.

    Raises:
        UsageError: a price is missing, or limits or prices have no run that they are for.
    """
    if asked != NOTHING and all(run.is_batch for run in runs):
        raise UsageError(
            f"limits and prices are for runs of bench online, and {runs[0].path} is an offline run",
            "leave out --slo and --price, or name an online run",
        )
    drawn = [(run, charts(run, asked)) for run in runs]
    page = render(drawn, out.parent, changes(runs), choice)
    write_whole(out, page.encode())
    return out


def write_outputs(run: Run) -> Path:
    """Write a run's files for reading into its folder, and return the report.

    They are `summary.md`, `results.csv`, `report.html` and, unless its settings say no, each figure as SVG,
    PNG and CSV.
    """
    if not run.meta.settings.figures:
        return write_without_figures(run)
    from harness.report.figures import figures  # matplotlib: a second to import

    drawn = charts(run)
    for plot in figures(run, drawn):
        figure = run.path / "figures" / plot.name
        write_whole(figure.with_name(f"{plot.name}.svg"), plot.svg.encode())
        write_whole(figure.with_name(f"{plot.name}.png"), plot.png())
        write_whole(figure.with_name(f"{plot.name}.csv"), plot.data.encode())
    return write_without_figures(run, drawn)


def write_without_figures(run: Run, drawn: Charts | None = None) -> Path:
    """Write all but the figures, which take longest, and return the report.

    Args:
        drawn: The run's charts, where they are made already.
    """
    folder, drawn = run.path, charts(run) if drawn is None else drawn
    write_whole(folder / "summary.md", summary(run).encode())
    write_whole(folder / "results.csv", results_csv(run).encode())
    write_whole(folder / "report.html", render([(run, drawn)], folder).encode())
    return folder / "report.html"


def summary(run: Run) -> str:
    """Return `summary.md`, text that pastes into an issue: what was compared, warnings, the verdict and the
    tables of a run."""
    parts = [f"# {_text(title(run))}\n"]
    lines = [f"- {_text(name)}: {_text(value)}" for name, value in facts(run).items()]
    parts.append("\n".join(lines) + "\n")
    parts += [f"> **{_text(notice.title)}** {_text(notice.detail, 4000)}\n" for notice in notices(run)]
    parts.append(_text(" ".join([*map(str, answer(run)), *terms(run)]), 2000) + "\n")
    if run.has_results:
        by_section = sections(run, None if run.is_batch else decide(run))
        parts += [markdown(each) for name in by_section if name not in PAGE_ONLY for each in by_section[name]]
    return "\n".join(parts)


def markdown(shown: Table) -> str:
    """Return a pipe table under a heading, with its notes and what its marks mean."""
    rule = ["---:" if column.numeric else "---" for column in shown.columns]
    heads, *lines = ([_text(text) for text in line] for line in (shown.headers, *shown.lines))
    body = "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))
    notes = [f"{_text(note, 1000)}\n" for note in (*shown.legend, *shown.notes)]
    return "\n".join([f"## {_text(shown.title)}\n", body, "", *notes])


def _text(text: str, limit: int = 300) -> str:
    """Text from outside that cannot end a cell, start markup or open a tag."""
    line = one_line(text, limit).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]":
        line = line.replace(mark, f"\\{mark}")
    return line


@dataclass(frozen=True)
class Chapter:
    """A run with its charts, in a page that lies in `folder`.

    Attributes:
        choice: The first comparison; None: every engine at the load of the verdict.

    What depends on a reader's choice is there for each, with its place: attributes that say for which load,
    baseline or pair it is, and `hidden` unless it is shown at first.
    """

    run: Run
    charts: Charts
    folder: Path
    choice: Choice | None = None

    @cached_property
    def styles(self) -> dict[str, Look]:
        """Look of each engine, by label."""
        return looks(self.run.engines)

    @cached_property
    def tables(self) -> dict[str, list[Table]]:
        """Tables by section."""
        return sections(self.run, self.charts.decided)

    @property
    def defined(self) -> list[Metric]:
        """Metrics that the definitions explain."""
        names = rates("offline") if self.run.is_batch else (*LATENCIES, *rates_of(self.run.pooled))
        return [METRICS[name] for name in names]

    @property
    def views(self) -> Sequence[View]:
        """Choices of what the charts by load show."""
        return max((chart.views for chart in self.charts.by_load.values()), key=len, default=())

    @property
    def labels(self) -> list[str]:
        """Labels of the engines, in order."""
        return list(self.styles)

    @cached_property
    def loads(self) -> list[Load]:
        """Loads that were measured."""
        return from_light_to_heavy(summary.load for summary in self.run.pooled)

    @cached_property
    def first_choice(self) -> Choice | None:
        """The first comparison; None where nothing can be chosen."""
        return (self.choice or first_choice(self.run)) if is_chosen_of(self.run) else None

    @property
    def is_pair(self) -> bool:
        """Tell whether two of several engines are compared at first."""
        first = self.first_choice
        return first is not None and len(first.labels) == 2 < len(self.labels)

    def of(self, badge: Badge) -> Markup:
        """Write which engines a badge is about, as an attribute; nothing of the whole run."""
        places = (str(self.labels.index(label)) for label in badge.engines if label in self.labels)
        return Markup(f' data-of="{" ".join(places)}"') if badge.engines else Markup()

    def place(self, load: Load | None = None, against: str = "", pair: Sequence[str] | None = None) -> Markup:
        """Write the attributes of a part that is for one load, one baseline or one pair; no pair: of all."""
        first, parts, is_shown = self.first_choice, [], True
        if first is None:
            return Markup()
        if load is not None:
            parts.append(f"data-load={self.loads.index(load)}")
            is_shown = load == first.load
        if against:
            parts.append(f"data-against={self.labels.index(against)}")
            is_shown = is_shown and against == first.labels[0]
        if pair is not None:
            parts.append(f'data-pair="{"-".join(str(self.labels.index(each)) for each in pair)}"')
            is_shown = is_shown and set(pair) == (set(first.labels) if self.is_pair else set())
        return Markup(f" {' '.join(parts)}{'' if is_shown else ' hidden'}")

    @property
    def verdicts(self) -> list[tuple[Markup, list[Sentence]]]:
        """The verdict on all engines and on every two at each load, and why; first what is shown at first."""
        return sorted(self._verdicts(), key=lambda each: each[0].endswith("hidden"))

    def _verdicts(self) -> Iterator[tuple[Markup, list[Sentence]]]:
        run, gaps = self.run, gaps_of(self.run)
        for load in self.loads:
            of_all = first_choice(run, load)
            first = answer(run) if load == first_choice(run).load else [verdict(run, of_all)]
            yield self.place(load, pair=()), [*first, *more(run, of_all, gaps)]
        for choice in pairs(run):
            sentences = [verdict(run, choice), *more(run, choice, gaps)]
            yield self.place(choice.load, pair=choice.labels), sentences

    @property
    def compared(self) -> list[tuple[Markup, Table]]:
        """The table of each load and baseline, as the verdicts; none where nothing can be chosen."""
        run, first = self.run, self.first_choice
        every = choices(run) if first else []
        tables = [(self.place(each.load, each.labels[0]), compared_table(run, each)) for each in every]
        return sorted(tables, key=lambda each: each[0].endswith("hidden"))

    @property
    def first_charts(self) -> list[tuple[Markup, Chart]]:
        """Charts of the first screen: of all loads, then of the chosen one."""
        at_loads = [(self.place(load), chart) for load, chart in self.charts.at_load.items()]
        return [*((Markup(), chart) for chart in self.charts.first), *at_loads]

    def ratios(self, metric: str) -> list[tuple[Markup, Table]]:
        """Tables of every engine over each of them, with the places of their baselines."""
        labels, run = self.labels, self.run
        pairs = [each for each in run.results.comparisons if each.metric == metric]
        if not pairs or self.first_choice is None:
            return []
        return [
            (self.place(against=each), ratios(pairs, metric, each, labels, run.pooled)) for each in labels
        ]

    @cached_property
    def profiles(self) -> dict[str, Any] | None:
        """Section on its profiles; None of a run that was not profiled."""
        return profile_section(self.run.path)

    def link(self, path: str) -> str | None:
        """Return the address from the page to a file of the run, `path` relative to its folder; None where it
        is not there."""
        target = self.run.path / path
        return quote(Path(os.path.relpath(target, self.folder)).as_posix()) if target.exists() else None


#: Rows of the longest table that is open in a page, as those of a search, with a row for each load, may be.
LONGEST_OPEN = 20


def render(
    runs: Sequence[tuple[Run, Charts]],
    folder: Path,
    changes: Sequence[Change] = (),
    choice: Choice | None = None,
) -> str:
    """The page, for a file in `folder`, which opens with a choice. The same runs give the same text."""
    chapters = [Chapter(run, charts, folder, None if at else choice) for at, (run, charts) in enumerate(runs)]
    together = together_of([run for run, _ in runs])
    named = {
        f"run-{number}": (chapter.charts.every, chapter.styles) for number, chapter in enumerate(chapters, 1)
    }
    named["several"] = (together.charts.every, together.styles)
    colors = {
        *(look.color for _, styles in named.values() for look in styles.values()),
        *(shade for charts, _ in named.values() for chart in charts.values() for shade in chart.key.values()),
    }
    dark = {color: on_dark(color) for color in sorted(colors)}
    return render_page(
        "report.html.j2",
        ("charts.js", "report.js"),
        title=_title(chapters),
        chapters=chapters,
        findings=FINDINGS.dump_json([finding for run, _ in runs for finding in findings(run)]).decode(),
        together=together,
        overview=overview([run for run, _ in runs]),
        changes=changes,
        metrics=METRICS,
        longest_open=LONGEST_OPEN,
        heading=heading,
        provenance=provenance,
        answer=answer,
        terms=terms,
        badges=badges,
        notices=notices,
        side_by_side=side_by_side,
        sources=sources,
        dark=dark,
        data=data_block(named, dark),
    )


def _title(chapters: Sequence[Chapter]) -> str:
    different = "; ".join(dict.fromkeys(heading.title(chapter.run) for chapter in chapters))
    return f"{different} ({len(chapters)} runs)" if len(chapters) > 1 else different
