"""What the terminal and the report show of profiles."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.digits import per_cent
from harness.profiling.reading.figures import CATEGORIES
from harness.profiling.reading.rules import CATEGORIES as CATEGORY_RULES
from harness.profiling.reading.rules import COMPONENTS, STEP_RANGES
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import where
from harness.report.text.numbers import DASH, decimals, number, plural, signed
from harness.schema.load import ClosedLoop
from harness.schema.profile import Agreement, ProfileFigures, ProfileRun, StepFigures, StepKind

_KINDS: tuple[StepKind, ...] = ("decode", "prefill")


def steps(figures: Sequence[ProfileFigures]) -> Table:
    """One row an engine, tool and kind of step: what a step takes."""
    heads = ("period ms", "p50", "busy ms", "idle ms", "gap before, ms", "kernels", "mean µs", "batch")
    columns = [
        *(Column(head, numeric=False) for head in ("engine", "tool", "step")),
        Column("steps"),
        *(Column(head) for head in heads),
    ]
    rows = [
        [Cell(profile.label), Cell(profile.tool), Cell(kind), Cell(str(step.n)), *_step(step)]
        for profile in figures
        for kind in _KINDS
        if (step := profile.steps.get(kind)) is not None
    ]
    notes = [
        f"{profile.label}, {profile.tool}: steps are found by {profile.steps_by}." for profile in figures
    ]
    notes.append(f"Batch: requests in a step on average; {DASH} where the engine's ranges do not say.")
    if any(profile.device == "cpu" for profile in figures):
        notes.append("On a CPU kernels are operators, and busy is the time in which one runs.")
    return Table("profile-steps", "A step, mean times", columns, rows, notes)


def categories(figures: Sequence[ProfileFigures]) -> Table:
    """One row an engine, tool and kind of step: where the time of a step goes, in ms."""
    columns = [
        *(Column(head, numeric=False) for head in ("engine", "tool", "step")),
        Column("together"),
        Column("idle"),
        *(Column(category) for category in CATEGORIES),
    ]
    rows = []
    for profile in figures:
        for kind in _KINDS:
            if (step := profile.steps.get(kind)) is None:
                continue
            values = [step.period_ms, step.idle_ms, *(step.categories_ms[name] for name in CATEGORIES)]
            places = decimals(values)
            cells = [Cell(number(value, places), value) for value in values]
            rows.append([Cell(profile.label), Cell(profile.tool), Cell(kind), *cells])
    notes = [
        "Together: a whole step, idle time and all categories.",
        "A kernel counts whole in the category of its name, also one that does several things at once: "
        "engines that fuse differently compare in their sums.",
    ]
    if any(profile.device == "cuda" for profile in figures):
        notes.append("Where kernels overlap, the one that began first has the time.")
    return Table("profile-categories", "Where the time of a step goes, ms", columns, rows, notes)


def ranks(figures: Sequence[ProfileFigures]) -> Table:
    """The ranks of each engine that has several: what a step takes, and what of it is between them."""
    heads = ("engine", "tool", "rank", "step ms", "busy ms", "communication ms", "share of the step")
    columns = [Column(head, numeric=head not in heads[:2]) for head in heads]
    rows = []
    for profile in figures:
        for rank in profile.ranks:
            values = [rank.step_ms, rank.busy_ms, rank.communication_ms]
            places = decimals(values)
            share = rank.communication_ms / rank.step_ms if rank.step_ms else 0.0
            times = [Cell(number(value, places), value) for value in values]
            who = [Cell(profile.label), Cell(profile.tool), Cell(str(rank.rank), rank.rank)]
            rows.append([*who, *times, Cell(per_cent(share), share)])
    notes = ["A rank that is done first waits for the others within communication."]
    return Table("profile-ranks", "Ranks that share a model, mean of all steps", columns, rows, notes)


def components(figures: Sequence[ProfileFigures]) -> Table:
    """Time in parts of the server, where ranges mark them."""
    heads = ("engine", "tool", "part", "ranges", "mean ms", "total ms")
    columns = [Column(head, numeric=head in heads[3:]) for head in heads]
    rows = [
        [
            *(Cell(text) for text in (profile.label, profile.tool, name, str(found.n))),
            Cell(number(found.mean_ms, 3), found.mean_ms),
            Cell(number(found.total_ms, 1), found.total_ms),
        ]
        for profile in figures
        for name, found in profile.components.items()
    ]
    return Table("profile-components", "Parts of the server, where ranges mark them", columns, rows)


def agreements(found: Sequence[Agreement]) -> Table:
    """One row an engine that both tools captured."""
    heads = ("engine", "steps", "kernels", "torch, ms", "nsys, ms", "nsys / torch")
    columns = [Column(head, numeric=head != "engine") for head in heads]
    rows = [
        [
            Cell(agreement.label),
            *(Cell(f"{count:,}", count) for count in (agreement.steps, agreement.kernels)),
            *(Cell(number(value, 2), value) for value in (agreement.torch_ms, agreement.nsys_ms)),
            Cell(number(agreement.nsys_ms / agreement.torch_ms, 3), agreement.nsys_ms / agreement.torch_ms),
        ]
        for agreement in found
    ]
    notes = [
        "Time of kernels, without copies, in steps of the same kernels, as many of each sort as both saw; "
        "other moments of the same load: attention takes longer where contexts are longer."
    ]
    return Table("profile-agreement", "Two profilers, the same steps", columns, rows, notes)


def kernels(profile: ProfileFigures) -> Table:
    """The kernels or operators that took longest."""
    columns = [
        Column("kernel" if profile.device == "cuda" else "operator", numeric=False),
        Column("category", numeric=False),
        Column("count"),
        Column("total ms"),
        Column("mean µs"),
    ]
    rows = [
        [
            Cell(_short(found.name), remark=found.name),
            Cell(found.category),
            Cell(f"{found.n:,}", found.n),
            Cell(number(found.total_ms, 2), found.total_ms),
            Cell(number(1e3 * found.total_ms / found.n, 1)),
        ]
        for found in profile.kernels
    ]
    notes = []
    if profile.device == "cuda":
        notes.append("Each kernel by itself: where one begins before the one ahead has ended, both count.")
    return Table(
        f"profile-kernels-{profile.tool}",
        f"{profile.label}, {profile.tool}: the longest",
        columns,
        rows,
        notes,
    )


def profiled(runs: Sequence[ProfileRun]) -> str:
    """What was captured, under which load."""
    tools: dict[str, list[str]] = {}
    for profile_run in runs:
        tools.setdefault(f"{profile_run.label} {_load_text(profile_run)}", []).append(profile_run.tool)
    return "; ".join(f"{what} ({' and '.join(names)})" for what, names in tools.items())


def _load_text(profile_run: ProfileRun) -> str:
    """The load, and how many of its requests the profile held in flight."""
    load, count = profile_run.load, profile_run.level.in_flight
    held = f"with {plural(count, 'request')} in flight"
    if load is None:
        return held
    if not isinstance(load, ClosedLoop):
        return f"{where(load)} {held}"
    return where(load) if load.concurrency == count else f"{where(load)}, {count} on average"


def rules() -> Table:
    """Every rule by which names are read."""
    columns = [Column(head, numeric=False) for head in ("what", "name contains")]
    rows = [[Cell(category), Cell(pattern)] for category, pattern in CATEGORY_RULES]
    rows.append([Cell("other"), Cell("anything else")])
    rows += [[Cell(f"part of the server: {name}"), Cell(pattern)] for name, pattern in COMPONENTS]
    rows += [[Cell(f"step of {name}"), Cell(pattern)] for name, pattern in STEP_RANGES.items()]
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
            rows.append(
                [
                    *(Cell(kind), Cell(name)),
                    *(Cell(number(value, 3), value) for value in (of_a, of_b)),
                    Cell(signed(of_a - of_b, 3), of_a - of_b),
                ]
            )
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


def _step(step: StepFigures) -> list[Cell]:
    times = (step.period_ms, step.period_p50_ms, step.busy_ms, step.idle_ms, step.gap_ms)
    places = decimals(times)
    return [
        *(Cell(number(value, places), value) for value in times),
        Cell(f"{step.kernels:.0f}", step.kernels),
        Cell(number(step.kernel_us, 1), step.kernel_us),
        Cell(DASH if step.batch is None else f"{step.batch:.1f}", step.batch),
    ]


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:77]}…"
