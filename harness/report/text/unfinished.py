"""What is missing from a run that its user ended early, or of which something failed after the cells."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness.engines.selection import make_engine_variants
from harness.report.text.numbers import few, plural, several
from harness.runs.reader import Run
from harness.schema.results import Skipped
from harness.schema.run_info import Check, Unasked

_NAMES: dict[Check, str] = {"answers": "its second answer check", "accuracy": "its accuracy task"}


def lacking(unasked: Unasked) -> str:
    """`vLLM lacks its accuracy task`."""
    if not unasked.what:
        return f"{unasked.label} failed after its cells"
    return f"{unasked.label} lacks {several([_NAMES[what] for what in unasked.what])}"


def unfinished(run: Run) -> tuple[str, str] | None:
    """A title and what is missing; None of a run that came to its end."""
    meta = run.meta
    if not meta.interrupted:
        return None
    title = "The run was interrupted."
    if not meta.is_adaptive:
        cells = len(meta.order) * len(meta.settings.loads)
        if len(run.repeats) == cells:
            title = "The run was interrupted after its last cell."
            resume = f"bench {meta.subcommand} --resume, with the run's folder,"
            left = dict.fromkeys(f"{lacking(unasked)}." for unasked in meta.unasked if not unasked.reason)
            does = "asks for that and checks the answers." if left else "checks the answers."
            return title, " ".join([*left, resume, does])
        title = f"The run was interrupted with {len(run.repeats)} of {plural(cells, 'cell')} measured."
    known = {cell.label for cell in run.repeats}
    known |= {fault.label for fault in run.results.skipped}
    planned = [label for label, _ in meta.order]
    if meta.search is not None:
        planned = [variant.label for variant in make_engine_variants(meta.settings)]
    return title, _rest(run, planned, known)


def _rest(run: Run, planned: Iterable[str], known: Collection[str]) -> str:
    """What is missing whole, and how to measure what is missing.

    Args:
        planned: Labels of engines.
        known: Those that have a result, or are named elsewhere as missing.
    """
    absent = list(dict.fromkeys(label for label in planned if label not in known))
    nothing = f"Nothing was measured of {few(absent)}. " if absent else ""
    return f"{nothing}bench {run.meta.subcommand} --resume, with the run's folder, measures the rest."


def each_once(skipped: Iterable[Skipped]) -> list[Skipped]:
    """Each engine's reasons once, without loads and repeats."""
    found: dict[tuple[str, str], Skipped] = {}
    for fault in skipped:
        found.setdefault((fault.label, fault.said), fault.model_copy(update={"load": None, "repeat": None}))
    return list(found.values())


def why_nothing(skipped: Iterable[Skipped]) -> list[str]:
    """The verdict on a run without a result: each engine's reasons and hints."""
    said = [
        fault.said if fault.reason.startswith(fault.label) else f"{fault.label}: {fault.said}"
        for fault in each_once(skipped)
    ]
    return ["No engine has a result.", *(text if text.endswith(".") else f"{text}." for text in said)]
