"""Does `--until 10%` find 10 %, and nothing where there is nothing? Simulated runs of two engines.

    python -m benchmarks.until_trials [--runs 500] [--most 50]

Cells have 200 requests, ten seconds at one each 50 ms, which is how long `bench` wants them. Both engines
take turns in balanced orders on a machine that slows them, and the second is as fast as the first or slower.
A run looks at its repeats as `bench online --until` does, by the same code. Prints the table of
docs/notes/intervals.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import Key
from harness.metrics.intervals import Estimate
from harness.metrics.power import decided
from harness.metrics.rankings import REAL
from harness.runs.schedule import balanced_orders
from harness.schema.load import ClosedLoop
from harness.schema.online_settings import MOST_REPEATS, OnlineSettings

SEED, REQUESTS, LOAD = 20261129, 200, ClosedLoop(concurrency=4)
#: Noise of a request, relative: TTFT varies more than TPOT.
WITHIN = {"ttft_ms": 0.3, "tpot_ms": 0.1, "e2e_ms": 0.1}
RATES = ("req_per_s", "output_tok_per_s")
Floats = npt.NDArray[np.float64]
#: (cells, n) factors of the requests of cells that follow each other, and the random numbers for them.
Shape = Callable[[np.random.Generator, int], Floats]


def lognormal(spread: float) -> Shape:
    """A factor of its own for each cell."""

    def factors(rng: np.random.Generator, cells: int) -> Floats:
        of_cell: Floats = np.exp(spread * rng.standard_normal((cells, 1)))
        return of_cell * np.ones((1, REQUESTS))

    return factors


def epochs(rng: np.random.Generator, cells: int) -> Floats:
    """Epochs of 3 s, every second one 1.5 times slower, and 3 % between cells; a server is started before
    each cell, which takes a random time."""
    t = np.arange(REQUESTS) + rng.integers(120, size=(cells, 1))
    return np.asarray(np.where(t // 60 % 2, 1.5, 1.0) * lognormal(0.03)(rng, cells))


def epochs_in_step(rng: np.random.Generator, cells: int) -> Floats:
    """Draw the same epochs where each cell begins when the one before ends: repeats depend on each other."""
    t = np.arange(cells * REQUESTS) + rng.integers(120)
    return np.asarray(np.where(t // 60 % 2, 1.5, 1.0).reshape(cells, REQUESTS) * lognormal(0.03)(rng, cells))


def pareto(rng: np.random.Generator, cells: int) -> Floats:
    """Heavy tails within cells, and 3 % between them."""
    tails = 1 + 0.1 * rng.pareto(1.2, (cells, REQUESTS))
    return np.asarray(tails * lognormal(0.03)(rng, cells))


def ar1(rng: np.random.Generator, cells: int) -> Floats:
    """A machine whose speed wanders by 15 %, with a memory of 5 s."""
    rho = np.exp(-1 / 100)
    wandering = lfilter([np.sqrt(1 - rho**2)], [1, -rho], rng.standard_normal((cells + 3) * REQUESTS))
    speed: Floats = np.exp(0.15 * wandering[-cells * REQUESTS :])
    return speed.reshape(cells, REQUESTS)


def warming(rng: np.random.Generator, cells: int) -> Floats:
    """A machine that begins 1.5 times slower and warms up over 15 s, and 3 % between cells."""
    cold = 1 + 0.5 * np.clip(1 - np.arange(cells * REQUESTS) / 300, 0, 1)
    return np.asarray(cold.reshape(cells, REQUESTS) * lognormal(0.03)(rng, cells))


SHAPES: dict[str, Shape] = {
    "lognormal cells, 2 %": lognormal(0.02),
    "lognormal cells, 5 %": lognormal(0.05),
    "lognormal cells, 10 %": lognormal(0.1),
    "epochs 1.5 times slower": epochs,
    "the same, in step with the cells": epochs_in_step,
    "Pareto tails, α 1.2": pareto,
    "AR(1), 15 %": ar1,
    "warm-up 1.5 → 1": warming,
}


def engines_of(shape: Shape, effect: float, most: int, rng: np.random.Generator) -> list[dict[Key, Floats]]:
    """Return (most,) values of each statistic in each cell of two engines, the second slower by `effect`."""
    orders = np.array(balanced_orders(2, most, int(rng.integers(2**31))))
    times = shape(rng, 2 * most)
    engines = []
    for engine in (0, 1):
        of_engine = times[orders.ravel() == engine] * (1 + effect * engine)
        cells: dict[Key, Floats] = {}
        for metric, noise in WITHIN.items():
            values = of_engine * np.exp(noise * rng.standard_normal(of_engine.shape))
            for q in (50, 90):
                level = np.percentile(values, q, axis=1, method="median_unbiased")
                cells[metric, f"p{q}"] = np.asarray(level, dtype=np.float64)
        for rate in RATES:
            cells[rate, rate] = 1 / of_engine.mean(axis=1)
        engines.append(cells)
    return engines


def judged_after(repeats: int, looks: int, engines: Sequence[dict[Key, Floats]]) -> list[Contrast]:
    """Compare two engines by their first repeats."""
    a, b = (
        {
            key: Estimate(float(each[:repeats].mean()), each[:repeats], looks=looks)
            for key, each in cells.items()
        }
        for cells in engines
    )
    return judged(contrast(LOAD, a, b))


@dataclass(frozen=True)
class Trial:
    """One simulated run.

    Attributes:
        wrong: whether a verdict is false.
        somewhere: whether the difference was found in a headline metric.
        everywhere: whether it was in every one.
        held: share of the intervals that hold the true ratio.
    """

    wrong: bool
    somewhere: bool
    everywhere: bool
    held: float
    repeats: int

    @staticmethod
    def run(
        shape: Shape, effect: float, settings: OnlineSettings, rng: np.random.Generator, *, once: bool
    ) -> Trial:
        """Measure until the difference of the settings would be found."""
        assert settings.until is not None
        engines, looks = engines_of(shape, effect, settings.repeats, rng), settings.looks
        for repeats in looks[-1:] if once else looks:
            contrasts = judged_after(repeats, 1 if once else len(looks), engines)
            if decided(contrasts, settings.until):
                break
        right = [each.verdict == "better" for each in contrasts if each.primary]
        wrong = [each.verdict in REAL and not (effect and each.verdict == "better") for each in contrasts]
        truths = [1 + effect if each.metric in RATES else 1 / (1 + effect) for each in contrasts]
        held = [
            each.ratio.ci is not None and each.ratio.ci[0] <= truth <= each.ratio.ci[1]
            for each, truth in zip(contrasts, truths, strict=True)
        ]
        return Trial(any(wrong), any(right), all(right), float(np.mean(held)), repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--most", type=int, default=MOST_REPEATS, help="repeats of a run at most")
    parser.add_argument("--until", default="10%")
    parser.add_argument("--shape", default="", help="a part of the names of the shapes")
    parser.add_argument(
        "--once", action="store_true", help="look at the last repeat alone, as without --until"
    )
    options = parser.parse_args()
    settings = OnlineSettings(until=options.until, repeats=options.most)
    assert settings.until is not None
    print(f"looks after {', '.join(map(str, settings.looks))} repeats\n")
    print(
        "| cells | equal engines: runs with a false verdict | intervals that hold the truth | repeats ",
        end="",
    )
    print(f"| {options.until} apart: found | in every headline metric | intervals | repeats |")
    print("|---|---|---|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        if options.shape not in name:
            continue
        row = [name]
        for effect in (0.0, settings.until):
            rng = np.random.default_rng(SEED)
            trials = [Trial.run(shape, effect, settings, rng, once=options.once) for _ in range(options.runs)]
            names = ("somewhere", "everywhere") if effect else ("wrong",)
            row += [f"{np.mean([getattr(each, field) for each in trials]):.1%}" for field in names]
            repeats = [each.repeats for each in trials]
            row.append(f"{np.mean([each.held for each in trials]):.1%}")
            row.append(f"{np.median(repeats):.0f} ({min(repeats)} to {max(repeats)})")
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
