"""Tables of profiles, for the terminal and the report: steps of an engine and where their time goes, and the
differences between engines taken apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from harness.profiling.reading.figures import CATEGORIES
from harness.profiling.reading.rules import CATEGORIES as CATEGORY_RULES
from harness.profiling.reading.rules import COMPONENTS, STEP_RANGES
from harness.report.tables.table import (
    Cell,
    Column,
    Field,
    Table,
    build,
    count,
    field,
    number,
    number_cell,
    share,
    text,
)
from harness.report.text.load_words import where
from harness.report.text.numbers import DASH, decimals, plural, signed
from harness.schema.load import ClosedLoop
from harness.schema.metrics import METRICS
from harness.schema.profile import (
    Agreement,
    Category,
    Gap,
    GapPart,
    KernelFigures,
    ProfileFigures,
    ProfileRun,
    RankFigures,
    StepFigures,
    StepKind,
)

_KINDS: tuple[StepKind, ...] = ("decode", "prefill")
#: Parts that leave more than this share of a difference do not explain it.
ENOUGH = 0.5
#: Letters of a kernel's name that are shown.
_LONGEST = 80

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


class _Step(NamedTuple):
    """A kind of step of a profiled engine."""

    profile: ProfileFigures
    kind: StepKind
    figures: StepFigures


def _steps(profiles: Sequence[ProfileFigures]) -> list[_Step]:
    return [
        _Step(profile, kind, profile.steps[kind])
        for profile in profiles
        for kind in _KINDS
        if profile.steps.get(kind) is not None
    ]


_WHICH: list[Field[_Step]] = [
    text("engine", lambda step: step.profile.label),
    text("tool", lambda step: step.profile.tool),
    text("step", lambda step: step.kind),
]


def _times(times: dict[str, Callable[[_Step], float]]) -> list[Field[_Step]]:
    """Columns of times in ms, by their heads; those of a step have the same decimals."""

    def column(head: str) -> Field[_Step]:
        time = times[head]
        return field(
            head, lambda step: number_cell(time(step), decimals([of(step) for of in times.values()]))
        )

    return list(map(column, times))


def steps(figures: Sequence[ProfileFigures]) -> Table:
    """Mean times of a step in ms, its kernels and its requests: one row an engine, tool and kind of step."""
    fields: list[Field[_Step]] = [
        *_WHICH,
        count("steps", lambda step: step.figures.n),
        *_times(
            {
                "period ms": lambda step: step.figures.period_ms,
                "p50": lambda step: step.figures.period_p50_ms,
                "busy ms": lambda step: step.figures.busy_ms,
                "idle ms": lambda step: step.figures.idle_ms,
                "gap before, ms": lambda step: step.figures.gap_ms,
            }
        ),
        number("kernels", lambda step: step.figures.kernels, 0),
        number("mean µs", lambda step: step.figures.kernel_us, 1),
        number("batch", lambda step: step.figures.batch, 1),
    ]
    notes = [
        f"{profile.label}, {profile.tool}: steps are found by {profile.steps_by}." for profile in figures
    ]
    notes.append(f"Batch: requests in a step on average; {DASH} where the engine's ranges do not say.")
    if any(profile.device == "cpu" for profile in figures):
        notes.append("On a CPU kernels are operators, and busy is the time in which one runs.")
    return build("profile-steps", "A step, mean times", fields, _steps(figures), notes)


def categories(figures: Sequence[ProfileFigures]) -> Table:
    """Parts of the time of a step, in ms: one row an engine, tool and kind of step."""
    times: dict[str, Callable[[_Step], float]] = {
        "together": lambda step: step.figures.period_ms,
        "idle": lambda step: step.figures.idle_ms,
    }
    times |= {category: partial(_category_ms, category=category) for category in CATEGORIES}
    notes = ["Together: a whole step, idle time and all categories.", _FUSED]
    if any(profile.device == "cuda" for profile in figures):
        notes.append("Where kernels overlap, the one that began first has the time.")
    title = "Where the time of a step goes, ms"
    return build("profile-categories", title, [*_WHICH, *_times(times)], _steps(figures), notes)


def _category_ms(step: _Step, category: Category) -> float:
    return step.figures.categories_ms[category]


class _Rank(NamedTuple):
    """A rank of a profiled engine."""

    profile: ProfileFigures
    figures: RankFigures

    def cell(self, ms: float) -> Cell:
        """A time, with decimals for all times of the rank."""
        figures = self.figures
        return number_cell(ms, decimals([figures.step_ms, figures.busy_ms, figures.communication_ms]))


def ranks(figures: Sequence[ProfileFigures]) -> Table:
    """Times of a step in ms and its share of communication, one row a rank."""
    fields: list[Field[_Rank]] = [
        text("engine", lambda rank: rank.profile.label),
        text("tool", lambda rank: rank.profile.tool),
        count("rank", lambda rank: rank.figures.rank),
        field("step ms", lambda rank: rank.cell(rank.figures.step_ms)),
        field("busy ms", lambda rank: rank.cell(rank.figures.busy_ms)),
        field("communication ms", lambda rank: rank.cell(rank.figures.communication_ms)),
        share(
            "share of the step",
            lambda rank: (
                rank.figures.communication_ms / rank.figures.step_ms if rank.figures.step_ms else 0.0
            ),
            0,
        ),
    ]
    rows = [_Rank(profile, rank) for profile in figures for rank in profile.ranks]
    notes = ["A rank that is done first waits for the others within communication."]
    return build("profile-ranks", "Ranks that share a model, mean of all steps", fields, rows, notes)


def components(figures: Sequence[ProfileFigures]) -> Table:
    """Times in parts of the server, where ranges mark them: one row an engine, tool and part."""
    columns = [Column(head, numeric=False) for head in ("engine", "tool", "part")]
    columns += [Column("ranges"), Column("mean ms"), Column("total ms")]
    rows = [
        [
            *map(Cell, (profile.label, profile.tool, name, str(part.n))),
            number_cell(part.mean_ms, 3),
            number_cell(part.total_ms, 1),
        ]
        for profile in figures
        for name, part in profile.components.items()
    ]
    return Table("profile-components", "Parts of the server, where ranges mark them", columns, rows)


def agreements(engines: Sequence[Agreement]) -> Table:
    """Kernel times of both tools in ms, one row an engine that both captured."""
    fields: list[Field[Agreement]] = [
        text("engine", lambda engine: engine.label),
        count("steps", lambda engine: engine.steps),
        count("kernels", lambda engine: engine.kernels),
        number("torch, ms", lambda engine: engine.torch_ms, 2),
        number("nsys, ms", lambda engine: engine.nsys_ms, 2),
        number("nsys / torch", lambda engine: engine.nsys_ms / engine.torch_ms, 3),
    ]
    return build("profile-agreement", "Two profilers, the same steps", fields, engines, [_SAME_STEPS])


def kernels(profile: ProfileFigures) -> Table:
    """The kernels or operators that took longest, one row each."""
    fields: list[Field[KernelFigures]] = [
        field("kernel" if profile.device == "cuda" else "operator", _kernel_cell, numeric=False),
        text("category", lambda kernel: kernel.category),
        count("count", lambda kernel: kernel.n),
        number("total ms", lambda kernel: kernel.total_ms, 2),
        number("mean µs", lambda kernel: 1e3 * kernel.total_ms / kernel.n, 1),
    ]
    notes = []
    if profile.device == "cuda":
        notes.append("Each kernel by itself: where one begins before the one ahead has ended, both count.")
    name, title = f"profile-kernels-{profile.tool}", f"{profile.label}, {profile.tool}: the longest"
    return build(name, title, fields, profile.kernels, notes)


def _kernel_cell(kernel: KernelFigures) -> Cell:
    shown = kernel.name if len(kernel.name) <= _LONGEST else f"{kernel.name[: _LONGEST - 3]}…"
    return Cell(shown, remark=kernel.name)


def rules() -> Table:
    """Every rule by which names are read."""
    columns = [Column(head, numeric=False) for head in ("what", "name contains")]
    pairs: list[tuple[str, str]] = [*CATEGORY_RULES, ("other", "anything else")]
    pairs += [(f"part of the server: {name}", pattern) for name, pattern in COMPONENTS]
    pairs += [(f"step of {name}", pattern) for name, pattern in STEP_RANGES.items()]
    rows = [list(map(Cell, pair)) for pair in pairs]
    return Table("profile-rules", "Rules, the first that matches decides", columns, rows)


def difference(a: ProfileFigures, b: ProfileFigures) -> Table:
    """Two profiles part by part: times of a step in ms, and A − B."""
    columns = [Column("step", numeric=False), Column("part", numeric=False)]
    columns += [Column(f"A: {a.label}"), Column(f"B: {b.label}"), Column("A − B")]
    rows = []
    for kind in _KINDS:
        steps_a, steps_b = a.steps.get(kind), b.steps.get(kind)
        if steps_a is None or steps_b is None:
            continue
        for name, of_a, of_b in _parts(steps_a, steps_b):
            delta = Cell(signed(of_a - of_b, 3), of_a - of_b)
            rows.append([Cell(kind), Cell(name), number_cell(of_a, 3), number_cell(of_b, 3), delta])
    notes = [
        f"{side}, {profile.tool}: steps are found by {profile.steps_by}."
        for side, profile in (("A", a), ("B", b))
    ]
    return Table("profile-difference", f"Profiles by {a.tool}, ms a step", columns, rows, notes)


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
    tools: dict[str, list[str]] = {}
    for profile_run in runs:
        tools.setdefault(f"{profile_run.label} {_load_text(profile_run)}", []).append(profile_run.tool)
    return "; ".join(f"{engine} ({' and '.join(names)})" for engine, names in tools.items())


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
    heads = ("part", gap.a, gap.b, "difference", "source")
    columns = [Column(head, numeric=head not in ("part", "source")) for head in heads]
    places = decimals([gap.value_a, gap.value_b, gap.delta, *(part.delta for part in gap.parts)])

    def row(name: str, a: float | None, b: float | None, delta: float, source: str) -> list[Cell]:
        values = (number_cell(a, places), number_cell(b, places))
        return [Cell(name), *values, Cell(signed(delta, places), delta), Cell(source)]

    verdicts = [f"{METRICS[metric].label} {name}" for metric, by in gap.verdicts.items() for name in by]
    source = f"by the client; a difference in {', '.join(verdicts)}"
    rows = [row(f"{METRICS[gap.metric].label}, mean", gap.value_a, gap.value_b, gap.delta, source)]
    rows += [row(part.name, part.value_a, part.value_b, part.delta, part.source) for part in gap.parts]
    rows.append(row("not explained", None, None, gap.unexplained, "what the parts leave over"))
    notes = [f"{note}." for note in _gap_notes(gap)]
    if gap.artifacts:
        notes.append(f"From {' and '.join(gap.artifacts)}.")
    return Table(f"gap-{gap.metric}", f"{_pair(gap)}: {conclusion(gap)}", columns, rows, notes)


def gaps_table(gaps: Sequence[Gap]) -> Table:
    """Every difference in a row, in ms: its size, the part that adds most, and what the parts leave over."""

    def places(gap: Gap) -> int:
        return decimals([gap.value_a, gap.value_b, gap.delta])

    fields: list[Field[Gap]] = [
        text("metric", lambda gap: METRICS[gap.metric].label),
        text("A", lambda gap: gap.a),
        text("B", lambda gap: gap.b),
        text("load", lambda gap: str(gap.load)),
        field("A, ms", lambda gap: number_cell(gap.value_a, places(gap))),
        field("B, ms", lambda gap: number_cell(gap.value_b, places(gap))),
        field("difference, ms", lambda gap: Cell(signed(gap.delta, places(gap)), gap.delta)),
        field("largest part", _largest_cell, numeric=False),
        field("not explained, ms", lambda gap: Cell(signed(gap.unexplained, places(gap)), gap.unexplained)),
    ]
    return build("gaps", "Differences, taken apart", fields, gaps)


def _largest_cell(gap: Gap) -> Cell:
    part = _largest(gap.parts)
    shown = DASH if part is None else f"{part.name}, {signed(part.delta, 2)} ms"
    return Cell(shown, remark=conclusion(gap))


def unexplained(gaps: Sequence[Gap]) -> list[str]:
    """The differences of which no part is known, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for gap in gaps:
        by_reason.setdefault(conclusion(gap), []).append(_pair(gap))
    return [f"{'; '.join(pairs)}: {reason}." for reason, pairs in by_reason.items()]


def conclusion(gap: Gap) -> str:
    """The largest part where the parts make up enough of the difference; else why they do not."""
    if gap.obstacle is not None:
        largest = f"; in it, {_largest_text(gap.parts)}" if gap.parts else ""
        return f"not explained: {_OBSTACLES[gap.obstacle]}{largest}"
    rest = f"{signed(gap.unexplained, 2)} ms of {signed(gap.delta, 2)} ms is"
    if not gap.delta or abs(gap.unexplained) > ENOUGH * abs(gap.delta):
        sentence = f"not explained: {rest} left over"
    else:
        sentence = _largest_text(gap.parts)
        sentence += f"; {rest} not explained" if round(gap.unexplained, 2) else ""
    inferred = "; idle time is inferred, as the profiler makes steps longer"
    return sentence + (inferred if gap.idle_inferred else "")


def _largest_text(parts: Sequence[GapPart]) -> str:
    largest = _largest(parts)
    if largest is None:
        return "nothing differs"
    total = math.fsum(part.delta for part in parts)
    return f"the largest part of {signed(total, 2)} ms is {largest.name}, {signed(largest.delta, 2)} ms"


def _largest(parts: Sequence[GapPart]) -> GapPart | None:
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
