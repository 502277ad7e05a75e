"""The words for a load: in sentences, above columns, along axes and in file names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from harness.metrics.digits import digits
from harness.report.grouping import grouped
from harness.report.text.numbers import decimals, number, plural
from harness.schema.load import (
    Batch,
    ClosedLoop,
    Load,
    Ramp,
    RateSeries,
    RequestRate,
    TraceLoad,
    arrivals_text,
    from_light_to_heavy,
)
from harness.schema.results import OnlineSummary

#: From this ratio on the offered rate is another than the asked one.
FAR = 1.05


@dataclass(frozen=True)
class _Words:
    """Words of one kind of load: the head of a column of its numbers, what they count, and the axis label.

    `{of}` is requests or sessions, `{noun}` the noun for one of them.
    """

    head: str
    quantity: str
    axis: str


_WORDS = {
    "trace": _Words("scale", "load", "offered requests/s"),
    "closed_loop": _Words("in flight", "{of} in flight", "{of} in flight"),
    "rate": _Words("{of}/s", "{noun} rate", "{of}/s"),
    "ramp": _Words("up to {of}/s", "highest {noun} rate", "highest {of}/s"),
    "series": _Words("up to {of}/s", "highest {noun} rate", "highest {of}/s"),
    "batch": _Words("prompts", "prompts", "prompts"),
}


def where(load: Load) -> str:
    """`at scale 0.4`, `with 64 requests in flight`."""
    match load:
        case TraceLoad() | RequestRate() | RateSeries():
            return f"at {load}"
        case ClosedLoop():
            return f"with {plural(load.concurrency, _noun_of(load))} in flight"
        case Ramp():
            return f"from {load}"
        case Batch():
            return f"in a {load}"


def with_rate(load: Load, offered: Iterable[float]) -> str:
    """Name the place as `where` does; with the requests/s that are offered, of a trace, of sessions and
    where they are not those that were asked for: `at 40.5 requests/s (scale 0.2)`."""
    rate = max(offered, default=0.0)
    match load:
        case TraceLoad() if rate:
            described = str(load)
        case RequestRate(of="sessions", req_per_s=wanted) if rate:
            described = f"{wanted:g} sessions/s, {arrivals_text(load.arrivals, load.cv)}"
        case RequestRate(req_per_s=wanted) if rate and not 1 / FAR < rate / wanted < FAR:
            described = f"asked: {wanted:g}, {arrivals_text(load.arrivals, load.cv)}"
        case _:
            return where(load)
    return f"at {number(rate, decimals([rate]))} requests/s ({described})"


def load_number(load: Load) -> str:
    """Value of a load as text: whole numbers of requests are never rounded."""
    return f"{load.value:,}" if isinstance(load, ClosedLoop | Batch) else f"{load.value:g}"


def head_of(loads: Iterable[Load]) -> str:
    """Head of a column of such numbers, of which there may be none."""
    return next((_with_noun(_WORDS[load.kind].head, load) for load in loads), "load")


def quantity(load: Load) -> str:
    """Quantity that the number counts: latency by … ."""
    return _with_noun(_WORDS[load.kind].quantity, load)


def axis_values(pooled: Iterable[OnlineSummary]) -> dict[Load, float]:
    """Each load by the number that grows with it: of a trace the requests/s that it offers."""
    by_load = grouped(pooled, lambda summary: summary.load)
    rates = {load: fmean(each.offered_req_per_s for each in same) for load, same in by_load.items()}
    by_rate = all(rates.values())
    return {
        load: (rates[load] if by_rate else 1 / load.value) if isinstance(load, TraceLoad) else load.value
        for load in from_light_to_heavy(by_load)
    }


def axis_number(load: Load, value: float) -> str:
    """A value of `axis_values` as a tick shows it."""
    return digits(value) if isinstance(load, TraceLoad) else load_number(load)


def axis_label(load: Load) -> str:
    """Label of an axis of such numbers."""
    return _with_noun(_WORDS[load.kind].axis, load)


def load_file_name(load: Load) -> str:
    """Part of a file's name: `scale_0.4`, `in_flight_64`."""
    head = head_of([load]).replace(" ", "_").replace("/", "_per_")
    return f"{head}_{load_number(load).replace(',', '')}"


def _with_noun(words: str, load: Load) -> str:
    return words.format(of=load.counts, noun=_noun_of(load))


def _noun_of(load: Load) -> str:
    return load.counts.removesuffix("s")
