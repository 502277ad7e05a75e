"""What the verdict of a run rests on: engines that are left out, the percentile that is compared, unequal
settings, how much of the load was answered, what intervals assume, and what variants of engines are."""

from __future__ import annotations

from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES
from harness.metrics.stability import KEPT_UP, MIN_REQUESTS
from harness.report.best import fell_behind
from harness.report.tables.decision import limits_text
from harness.report.tables.latency import slo_met
from harness.report.text.claims import higher_percentiles
from harness.report.text.load_words import where
from harness.report.text.numbers import decimals, few, number, percent
from harness.report.text.provenance import assumed_of_rates
from harness.report.text.settings import unequal_settings
from harness.report.text.verdict import shown_load
from harness.report.winners import winners
from harness.runs.reader import OnlineRun, Run
from harness.schema.load import ClosedLoop, Load
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary

#: So many requests in flight at most are no load.
FEW = 2


def terms(run: Run) -> list[str]:
    """Sentences about the load that the verdict speaks of, and what the variants are; of a search, which has
    sentences of its own, only the latter, and of a batch also what its intervals assume."""
    variants = _variants(run)
    if run.is_batch:
        return [*filter(None, [assumption(run)]), *variants]
    if not run.pooled or run.results.search is not None:
        return variants
    load = shown_load(run)
    cells = [summary for summary in run.pooled if summary.load == load and summary.num_success]
    answered = (
        ""
        if isinstance(load, ClosedLoop)
        else _answered(cells, [each for each in run.repeats if each.load == load])
    )
    found = (
        _not_compared(run, load),
        _percentiles(run, cells),
        unequal_settings(run),
        answered,
        _few(cells),
        assumption(run),
        *variants,
    )
    return [sentence for sentence in found if sentence]


def _variants(run: Run) -> list[str]:
    """What variants do, or why engines need them; those of which the same is said together."""
    by: dict[str, list[str]] = {}
    for launch in run.meta.launches:
        if launch.about:
            by.setdefault(launch.about, []).append(launch.label)
    return [f"{_shared(labels) or few(labels)}: {about}" for about, labels in by.items()]


def _shared(labels: list[str]) -> str:
    """The variant of several engines, where it has the same name in all: `prefix cache`."""
    names = {label.partition(" (")[2].removesuffix(")") for label in labels}
    return names.pop() if len(labels) > 1 and len(names) == 1 else ""


def _not_compared(run: OnlineRun, load: Load) -> str:
    """Which engines a verdict about several others leaves out as invalid at `load`."""
    cells = [cell for cell in run.pooled if cell.load == load]
    labels = [cell.label for cell in cells if not cell.valid]
    if not labels or len(cells) - len(labels) < 2:
        return ""
    if len(labels) > 1:
        return f"{few(labels)} are not compared: they have invalid repeats."
    repeats = [cell.valid for cell in run.repeats if (cell.load, cell.label) == (load, labels[0])]
    bad = repeats.count(False)
    if len(repeats) < 2:
        return f"{labels[0]} is not compared: its cell is invalid."
    are = "is" if bad == 1 else "are"
    return f"{labels[0]} is not compared: {bad} of its {len(repeats)} repeats {are} invalid."


def _percentiles(run: OnlineRun, cells: list[OnlineSummary]) -> str:
    """Why the verdict is about the percentile that it is about; of a tuning it is about the objective."""
    if run.meta.tune is not None:
        return ""
    valid = [cell for cell in cells if cell.valid]
    found = winners(valid, run.results.comparisons).values() if len(valid) > 1 else ()
    latencies = [claim for claim in found if claim is not None and METRICS[claim.metric].is_latency]
    return higher_percentiles(latencies)


def goodput(run: Run) -> str:
    """What each engine answers within the run's service level at the load that the verdict speaks of; empty
    without one."""
    if run.is_batch or (slo := run.meta.settings.slo) is None or not run.pooled:
        return ""
    load = shown_load(run)
    cells = [cell for cell in run.pooled if cell.load == load and cell.goodput_req_per_s is not None]
    rates = [cell.goodput_req_per_s for cell in cells]
    said = [
        f"{cell.label} {number(rate, decimals(rates))} requests/s ({slo_met(cell).text} of all)"
        for cell, rate in zip(cells, rates, strict=True)
    ]
    return f"Goodput {where(load)} ({limits_text(slo)}): {'; '.join(said)}." if said else ""


def assumption(run: Run) -> str:
    """What intervals of one repeat rest on in addition to the samples; empty where the verdict has none, and
    of a search, whose intervals are others."""
    if run.is_batch:
        alone = any(min(found.repeats) < 2 and found.ci is not None for found in run.results.comparisons)
        return f"One repeat: intervals assume that repeats differ by {assumed_of_rates}." if alone else ""
    if not run.pooled or run.results.search is not None:
        return ""
    load = shown_load(run)
    valid = {cell.label for cell in run.pooled if cell.load == load and cell.valid}
    compared = [
        c
        for c in run.results.comparisons
        if c.load == load and {c.a, c.b} <= valid and c.ci is not None and min(c.repeats) < 2
    ]
    if not compared:
        return ""
    repeats = dict(pair for c in compared for pair in zip((c.a, c.b), c.repeats, strict=True))
    single = [label for label, count in repeats.items() if count < 2]
    least, most = 100 * ASSUMED_OF_RATES, 100 * ASSUMED_OF_LATENCIES["p99"]
    return (
        f"One repeat{'' if len(single) == len(valid) else f' of {few(single)}'}: intervals above "
        f"assume that repeats differ by {least:.0f} % (rates) to {most:.0f} % (p99)."
    )


def _answered(cells: list[OnlineSummary], repeats: list[OnlineSummary]) -> str:
    """How much of what was sent, and who fell behind."""
    if not cells:
        return ""
    good, sent = min(((cell.num_success, cell.num_requests) for cell in cells), key=lambda n: n[0] / n[1])
    who, share = "Every engine" if len(cells) > 1 else cells[0].label, percent(good, sent)
    least = "at least " if len(cells) > 1 and not share.startswith("over") else ""
    how_many = "all requests" if good == sent else f"{least}{share} of the requests"
    said = f"{who} answered {how_many}."
    # Of valid cells that fell behind, the verdict says it.
    if behind := [cell.label for cell in cells if not cell.valid and fell_behind(cell)]:
        return f"{said} {few(behind)} fell behind."
    late = any(c.offered_req_per_s and c.req_per_s < KEPT_UP * c.offered_req_per_s for c in cells)
    if late and any(_waited(each) < MIN_REQUESTS for each in repeats):
        return f"{said} Whether an engine fell behind is not known with fewer than {MIN_REQUESTS} requests."
    if late and not any(map(fell_behind, cells)):
        said += " No engine fell behind: the achieved rate is lower as it counts until the last answer ends."
    return said


def _waited(cell: OnlineSummary) -> int:
    """Requests that the rule for falling behind counts: the server took and did not refuse them."""
    return cell.num_success + cell.errors.get("timeout", 0) + cell.left_out


def _few(cells: list[OnlineSummary]) -> str:
    peaks = [cell.peak_in_flight for cell in cells if cell.peak_in_flight is not None]
    if not peaks or max(peaks) > FEW:
        return ""
    how_many = "two requests were" if max(peaks) > 1 else "one request was"
    return f"At most {how_many} in flight at once, which stresses no engine."
