"""Tables of profiles, for the terminal and the report: steps of an engine and where their time goes, and the
differences between engines taken apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.metrics.digits import per_cent
from harness.profiling.artifacts import read_manifest, read_profiles
from harness.profiling.reading.figures import CATEGORIES
from harness.profiling.reading.rules import CATEGORIES as CATEGORY_RULES
from harness.profiling.reading.rules import COMPONENTS, STEP_RANGES
from harness.report.grouping import grouped
from harness.report.tables.table import Cell, Column, Table, alike_in_rows
from harness.report.text.load_words import where
from harness.report.text.numbers import DASH, decimals, plural, signed
from harness.schema.load import ClosedLoop
from harness.schema.metrics import METRICS
from harness.schema.profile import (
    Agreement,
    Gap,
    GapPart,
    ProfileFigures,
    ProfileRun,
    Profiles,
    Spent,
    StepFigures,
    StepKind,
)

_KINDS: tuple[StepKind, ...] = ("decode", "prefill")
#: Parts that leave more than this share of a difference do not explain it.
ENOUGH = 0.5
#: Letters of a kernel's name that are shown.
_LONGEST = 80
#: Functions of a sampled engine.
_MOST_FUNCTIONS = 10

_OBSTACLES = {
    "no profile": "there is no profile of both engines",
    "other load": "the profile is of another load",
    "not representative": "the profile is not representative",
}
_FUSED = (
    "A kernel counts whole in the category of its name, also one that does several things at once: "
    "engines that fuse differently compare in their sums."
)
_SAME_STEPS = (
    "Time of kernels, without copies, in steps of the same kernels, as many of each sort as both saw; "
    "other moments of the same load: attention takes longer where contexts are longer."
)


# --- Steps ----------------------------------------------------------------------------------------------


def figure_tables(profiles: Profiles) -> list[Table]:
    """Build the tables of what the profilers saw, those that have rows."""
    figures = [profile for profile in profiles.figures if profile.steps]
    builders = (_steps_table, _categories_table, _ranks_table, _components_table)
    tables = [*(build(figures) for build in builders), _agreement_table(profiles.agreements)]
    tables.append(_sampled_table(profiles.sampled))
    return [table for table in tables if table.rows]


def _steps(profiles: Sequence[ProfileFigures]) -> tuple[list[Column], list[StepFigures]]:
    """Return the columns that name every step of the profiles, and the steps."""
    rows = [
        (profile, kind, profile.steps[kind])
        for profile in profiles
        for kind in _KINDS
        if kind in profile.steps
    ]
    kinds = Column.text("step", [kind for _, kind, _ in rows])
    names = [*_profiled_columns([profile for profile, *_ in rows]), kinds]
    return names, [step for *_, step in rows]


def _profiled_columns(profiles: Sequence[ProfileFigures]) -> list[Column]:
    """Return the columns of engine and tool."""
    labels, tools = [profile.label for profile in profiles], [profile.tool for profile in profiles]
    return [Column.text("engine", labels), Column.text("tool", tools)]


def _steps_table(figures: Sequence[ProfileFigures]) -> Table:
    """Mean times of a step in ms, its kernels and its requests: one row an engine, tool and kind of step."""
    names, each = _steps(figures)
    columns = [
        *names,
        Column.count("steps", [step.n for step in each]),
        *alike_in_rows(
            ("period ms", "p50", "busy ms", "idle ms", "gap before, ms"),
            [(s.period_ms, s.period_p50_ms, s.busy_ms, s.idle_ms, s.gap_ms) for s in each],
        ),
        Column.number("kernels", [step.kernels for step in each], 0),
        Column.number("mean µs", [step.kernel_us for step in each], 1),
        Column.number("batch", [step.batch for step in each], 1),
    ]
    notes = [
        f"{profile.label}, {profile.tool}: steps are found by {profile.steps_by}." for profile in figures
    ]
    notes.append(f"Batch: requests in a step on average; {DASH} where the engine's ranges do not say.")
    if any(profile.device == "cpu" for profile in figures):
        notes.append("On a CPU kernels are operators, and busy is the time in which one runs.")
    return Table("profile-steps", "A step, mean times", columns, notes)


def _categories_table(figures: Sequence[ProfileFigures]) -> Table:
    """Parts of the time of a step, in ms: one row an engine, tool and kind of step."""
    names, each = _steps(figures)
    shown = [category for category in CATEGORIES if any(step.categories_ms[category] for step in each)]
    times = [(s.period_ms, s.idle_ms, *(s.categories_ms[category] for category in shown)) for s in each]
    columns = [*names, *alike_in_rows(("together", "idle", *shown), times)]
    notes = ["Together: a whole step, idle time and all categories.", _FUSED]
    if any(profile.device == "cuda" for profile in figures):
        notes.append("Where kernels overlap, the one that began first has the time.")
    return Table("profile-categories", "Where the time of a step goes, ms", columns, notes)


def _ranks_table(figures: Sequence[ProfileFigures]) -> Table:
    """Times of a step in ms and its share of communication, one row a rank."""
    profiles = [profile for profile in figures for _ in profile.ranks]
    each = [rank for profile in figures for rank in profile.ranks]
    shares = [rank.communication_ms / rank.step_ms if rank.step_ms else 0.0 for rank in each]
    columns = [
        *_profiled_columns(profiles),
        Column.count("rank", [rank.rank for rank in each]),
        *alike_in_rows(
            ("step ms", "busy ms", "communication ms"),
            [(rank.step_ms, rank.busy_ms, rank.communication_ms) for rank in each],
        ),
        Column.share("share of the step", shares, 0),
    ]
    notes = ["A rank that is done first waits for the others within communication."]
    return Table("profile-ranks", "Ranks that share a model, mean of all steps", columns, notes)


def _components_table(figures: Sequence[ProfileFigures]) -> Table:
    """Times in parts of the server, where ranges mark them: one row an engine, tool and part."""
    rows = [(profile, *item) for profile in figures for item in profile.components.items()]
    parts = [part for _, _, part in rows]
    columns = [
        *_profiled_columns([profile for profile, _, _ in rows]),
        Column.text("part", [name for _, name, _ in rows]),
        Column("ranges", [Cell(str(part.n)) for part in parts]),
        Column.number("mean ms", [part.mean_ms for part in parts], 3),
        Column.number("total ms", [part.total_ms for part in parts], 1),
    ]
    return Table("profile-components", "Parts of the server, where ranges mark them", columns)


def _sampled_table(engines: Sequence[Spent]) -> Table:
    """Functions of engines whose stacks were sampled, by the share of the samples in which they ran."""
    rows = [(each.label, *part) for each in engines for part in list(each.parts.items())[:_MOST_FUNCTIONS]]
    columns = [
        Column.text("engine", [label for label, *_ in rows]),
        Column.text("function", [name for _, name, _ in rows]),
        Column("share", [Cell(per_cent(share, 1), share) for *_, share in rows]),
    ]
    return Table("profile-sampled", "Sampled by py-spy: what Python itself ran", columns)


def _agreement_table(engines: Sequence[Agreement]) -> Table:
    """Kernel times of both tools in ms, one row an engine that both captured."""
    columns = [
        Column.text("engine", [engine.label for engine in engines]),
        Column.count("steps", [engine.steps for engine in engines]),
        Column.count("kernels", [engine.kernels for engine in engines]),
        Column.number("torch, ms", [engine.torch_ms for engine in engines], 2),
        Column.number("nsys, ms", [engine.nsys_ms for engine in engines], 2),
        Column.number("nsys / torch", [engine.nsys_ms / engine.torch_ms for engine in engines], 3),
    ]
    return Table("profile-agreement", "Two profilers, the same steps", columns, [_SAME_STEPS])


def _kernels_table(profile: ProfileFigures) -> Table:
    """The kernels or operators that took longest, one row each."""
    on_gpu, longest = profile.device == "cuda", profile.kernels
    names = [Cell(_cut(kernel.name), remark=kernel.name) for kernel in longest]
    columns = [
        Column("kernel" if on_gpu else "operator", names, numeric=False),
        Column.text("category", [kernel.category for kernel in longest]),
        Column.count("count", [kernel.n for kernel in longest]),
        Column.number("total ms", [kernel.total_ms for kernel in longest], 2),
        Column.number("mean µs", [1e3 * kernel.total_ms / kernel.n for kernel in longest], 1),
    ]
    both = "Each kernel by itself: where one begins before the one ahead has ended, both count."
    notes = [both] if on_gpu else []
    title = f"{profile.label}, {profile.tool}: the longest"
    return Table(f"profile-kernels-{profile.tool}", title, columns, notes)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}…"


def _rules_table() -> Table:
    """Every rule by which names are read."""
    pairs: list[tuple[str, str]] = [*CATEGORY_RULES, ("other", "anything else")]
    pairs += [(f"part of the server: {name}", pattern) for name, pattern in COMPONENTS]
    pairs += [(f"step of {name}", pattern) for name, pattern in STEP_RANGES.items()]
    columns = [
        Column.text("what", [subject for subject, _ in pairs]),
        Column.text("name contains", [pattern for _, pattern in pairs]),
    ]
    return Table("profile-rules", "Rules, the first that matches decides", columns)


def difference(a: ProfileFigures, b: ProfileFigures) -> Table:
    """Two profiles part by part: times of a step in ms, and A − B."""
    kinds = [kind for kind in _KINDS if kind in a.steps and kind in b.steps]
    rows = [(kind, *part) for kind in kinds for part in _parts(a.steps[kind], b.steps[kind])]
    columns = [
        Column.text("step", [kind for kind, *_ in rows]),
        Column.text("part", [name for _, name, _, _ in rows]),
        Column.number(f"A: {a.label}", [of_a for *_, of_a, _ in rows], 3),
        Column.number(f"B: {b.label}", [of_b for *_, of_b in rows], 3),
        Column("A − B", [_signed(of_a - of_b, 3) for *_, of_a, of_b in rows]),
    ]
    notes = [f"{side}, {it.tool}: steps are found by {it.steps_by}." for side, it in (("A", a), ("B", b))]
    return Table("profile-difference", f"Profiles by {a.tool}, ms a step", columns, notes)


def _signed(value: float, places: int) -> Cell:
    return Cell(signed(value, places), value)


def _parts(a: StepFigures, b: StepFigures) -> list[tuple[str, float, float]]:
    parts = [(str(name), a.categories_ms[name], b.categories_ms[name]) for name in CATEGORIES]
    return [
        ("period", a.period_ms, b.period_ms),
        *(part for part in parts if part[1] or part[2]),
        ("idle", a.idle_ms, b.idle_ms),
        ("kernels (number)", a.kernels, b.kernels),
    ]


def profiled(runs: Sequence[ProfileRun]) -> str:
    """Engines, loads and tools of the captured profiles."""
    together = grouped(runs, lambda run: f"{run.label} {_load_text(run)}").items()
    return "; ".join(f"{engine} ({' and '.join(run.tool for run in same)})" for engine, same in together)


def _load_text(profile_run: ProfileRun) -> str:
    """The load, and how many of its requests the profile held in flight."""
    load, in_flight = profile_run.load, profile_run.level.in_flight
    held = f"with {plural(in_flight, 'request')} in flight"
    if load is None:
        return held
    if not isinstance(load, ClosedLoop):
        return f"{where(load)} {held}"
    return where(load) if load.concurrency == in_flight else f"{where(load)}, {in_flight} on average"


# --- Differences taken apart ----------------------------------------------------------------------------


def gap_table(gap: Gap) -> Table:
    """One difference and its parts."""
    verdicts = [f"{METRICS[metric].label} {name}" for metric, by in gap.verdicts.items() for name in by]
    client = f"by the client; a difference in {', '.join(verdicts)}"
    rows: list[tuple[str, float | None, float | None, float, str]] = [
        (f"{METRICS[gap.metric].label}, mean", gap.value_a, gap.value_b, gap.delta, client),
        *((part.name, part.value_a, part.value_b, part.delta, part.source) for part in gap.parts),
        ("not explained", None, None, gap.unexplained, "what the parts leave over"),
    ]
    places = decimals([gap.value_a, gap.value_b, *(delta for *_, delta, _ in rows[:-1])])
    columns = [
        Column.text("part", [name for name, *_ in rows]),
        Column.number(gap.a, [of_a for _, of_a, *_ in rows], places),
        Column.number(gap.b, [of_b for _, _, of_b, *_ in rows], places),
        Column("difference", [_signed(delta, places) for *_, delta, _ in rows]),
        Column.text("source", [source for *_, source in rows]),
    ]
    notes = [f"{note}." for note in _gap_notes(gap)]
    if gap.artifacts:
        notes.append(f"From {' and '.join(gap.artifacts)}.")
    return Table(f"gap-{gap.metric}", f"{_pair(gap)}: {conclusion(gap)}", columns, notes)


def gaps_table(gaps: Sequence[Gap]) -> Table:
    """Every difference in a row, in ms: its size, the part that adds most, and what the parts leave over."""
    places = [decimals([gap.value_a, gap.value_b, gap.delta]) for gap in gaps]
    columns = [
        Column.text("metric", [METRICS[gap.metric].label for gap in gaps]),
        Column.text("A", [gap.a for gap in gaps]),
        Column.text("B", [gap.b for gap in gaps]),
        Column.text("load", [str(gap.load) for gap in gaps]),
        Column("A, ms", list(map(Cell.number, [gap.value_a for gap in gaps], places))),
        Column("B, ms", list(map(Cell.number, [gap.value_b for gap in gaps], places))),
        Column("difference, ms", list(map(_signed, [gap.delta for gap in gaps], places))),
        Column("largest part", list(map(_largest_cell, gaps)), numeric=False),
        Column("not explained, ms", list(map(_signed, [gap.unexplained for gap in gaps], places))),
    ]
    return Table("gaps", "Differences, taken apart", columns)


def _largest_cell(gap: Gap) -> Cell:
    part = largest_part(gap.parts)
    shown = DASH if part is None else f"{part.name}, {signed(part.delta, 2)} ms"
    return Cell(shown, remark=conclusion(gap))


def unexplained(gaps: Sequence[Gap]) -> list[str]:
    """The differences of which no part is known, a line for each reason."""
    by_reason = grouped(gaps, conclusion)
    return [f"{'; '.join(map(_pair, same))}: {reason}." for reason, same in by_reason.items()]


def conclusion(gap: Gap) -> str:
    """The largest part where the parts make up enough of the difference; else why they do not."""
    if gap.obstacle is not None:
        largest = f"; in it, {_largest_text(gap.parts)}" if gap.parts else ""
        return f"not explained: {_OBSTACLES[gap.obstacle]}{largest}"
    rest = f"{signed(gap.unexplained, 2)} ms of {signed(gap.delta, 2)} ms is"
    if not is_explained(gap):
        sentence = f"not explained: {rest} left over"
    else:
        sentence = _largest_text(gap.parts)
        sentence += f"; {rest} not explained" if round(gap.unexplained, 2) else ""
    inferred = "; idle time is inferred, as the profiler makes steps longer"
    return sentence + (inferred if gap.idle_inferred else "")


def is_explained(gap: Gap) -> bool:
    """Tell whether the parts make up enough of the difference."""
    enough = gap.delta != 0 and abs(gap.unexplained) <= ENOUGH * abs(gap.delta)
    return gap.obstacle is None and bool(gap.parts) and enough


def _largest_text(parts: Sequence[GapPart]) -> str:
    largest = largest_part(parts)
    if largest is None:
        return "nothing differs"
    total = math.fsum(part.delta for part in parts)
    return f"the largest part of {signed(total, 2)} ms is {largest.name}, {signed(largest.delta, 2)} ms"


def largest_part(parts: Sequence[GapPart]) -> GapPart | None:
    """The part that adds most in the direction in which all parts together differ."""
    total = math.fsum(part.delta for part in parts)
    towards = [part for part in parts if part.delta * total > 0]
    return max(towards, key=lambda part: abs(part.delta), default=None)


def _gap_notes(gap: Gap) -> Iterator[str]:
    """The load of both engines in the benchmark, and how their profiles compare with it."""
    for label, level in gap.levels.items():
        yield (
            f"{label}: {level.running:.1f} requests running on average, "
            f"{level.in_flight} in flight, when tokens came"
        )
    for step in gap.steps:
        if step.decode_batch is not None:
            yield f"{step.label}: {step.decode_batch:.1f} requests in a profiled decode step"
        if step.benchmark_ms is None:
            yield f"{step.label}: there is no benchmark to compare the profiled steps with"
        elif not step.representative:
            longer = step.profiled_ms / step.benchmark_ms - 1
            yield (
                f"{step.label}: not representative: a step took {step.profiled_ms:.2f} ms in the profile and "
                f"{step.benchmark_ms:.2f} ms in the benchmark ({100 * longer:+.0f} %)"
            )
        if gap.idle_inferred and step.busy_ms >= (step.benchmark_ms or 0.0):
            yield (
                f"{step.label}: its kernels alone took {step.busy_ms:.2f} ms a step, more than the "
                "benchmark's step: more requests were held in flight than ran there, and no idle time can be "
                "inferred"
            )


def _pair(gap: Gap) -> str:
    return f"{METRICS[gap.metric].label} of {gap.a} against {gap.b}, {gap.load}"


# --- The section of the page ----------------------------------------------------------------------------


def profile_section(run: Path) -> dict[str, Any] | None:
    """Return the tables of the gaps and of the figures, and the files they come from; None where a run was
    not profiled.

    Raises:
        UsageError: what the profile stage wrote cannot be read.
    """
    profiles, manifest = read_profiles(run), read_manifest(run)
    if profiles is None or manifest is None:
        return None
    apart = [gap for gap in profiles.gaps if gap.parts]
    figures = profiles.figures
    remarks = {f"{each.label}, {each.tool}": remark for each in figures for remark in each.remarks}
    return {
        "profiled": profiled([captured for captured in manifest.runs if captured.error is None]),
        "all_gaps": gaps_table(apart),
        "gaps": list(map(gap_table, apart)),
        "unexplained": unexplained([gap for gap in profiles.gaps if not gap.parts]),
        "tables": figure_tables(profiles),
        "kernels": list(map(_kernels_table, figures)),
        "rules": _rules_table(),
        "unread": profiles.unread | remarks,
        "artifacts": [artifact for captured in manifest.runs for artifact in captured.artifacts],
    }
