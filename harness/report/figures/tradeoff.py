"""Throughput against latency: what an engine gives at each load, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.percentiles import missing
from harness.report.figures.axes import fit_values, key
from harness.report.figures.bands import Styles
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import MUTED
from harness.report.figures.svg import Plot
from harness.report.text.load_words import head_of
from harness.report.text.numbers import decimals, number
from harness.schema.metrics import METRICS
from harness.schema.results import OnlineSummary


def tradeoff(pooled: Sequence[OnlineSummary], styles: Styles, metric: str) -> Plot:
    """The output rate and a latency at p90 of each load, joined from light to heavy.

    p50 is shown instead of p90 where a sample does not support it.
    """
    term = METRICS[metric]
    q = 90 if all(not missing(90, summary.latency(metric).n) for summary in pooled) else 50

    def level(one: OnlineSummary) -> float | None:
        value = one.value(metric, f"p{q}")
        return value

    heads = ("engine", head_of(one.load for one in pooled), "output_tok_per_s", "statistic", "ms", "valid")
    sketch = Sketch(styles, heads)
    axes = sketch.axes()
    rates: list[float] = []
    values: list[float] = []
    for label, look in styles.items():
        found = [
            (one.output_tok_per_s, value, one)
            for one in sorted(pooled, key=lambda one: one.load.weight)
            if one.label == label and (value := level(one)) is not None
        ]
        x, y = [rate for rate, *_ in found], [value for _, value, _ in found]
        (line,) = axes.plot(x, y, color=look.color, marker=look.marker, linestyle=look.line)
        sketch.points(line, label, [_tip(one, rate, f"{term.label} p{q}", ms) for rate, ms, one in found])
        sketch.rows += [(label, one.load.value, rate, f"p{q}", ms, one.valid) for rate, ms, one in found]
        rates += x
        values += y
    for load in sorted({one.load for one in pooled}):
        rate, ms = max(
            ((one.output_tok_per_s, level(one) or 0.0) for one in pooled if one.load == load),
            key=lambda point: point[1],
        )
        aside = 2 * rate > max(rates)  # a load beyond what the engine can give is above the one before
        axes.annotate(
            str(load), (rate, ms), (-6, 3) if aside else (0, 6),
            textcoords="offset points", ha="right" if aside else "center", fontsize=7, color=MUTED,
        )  # fmt: skip
    axes.set_title(f"{term.label} p{q}, ms")
    fit_values(axes, [*values, 1.06 * max(values)])
    fit_values(axes, rates, "x")
    axes.set_xlabel("output tok/s", loc="left")
    key(axes, "below right is better")
    return sketch.finish(
        f"tradeoff_{term.short_name}", f"{term.title} at p{q} against the output token rate, load by load"
    )


def _tip(summary: OnlineSummary, rate: float, what: str, ms: float) -> str:
    parts = (
        f"{summary.label}, {summary.load}",
        f"{number(rate, decimals([rate]))} output tok/s",
        f"{what} {number(ms, decimals([ms]))} ms",
    )
    return LINE.join(parts if summary.valid else (*parts, "invalid"))
