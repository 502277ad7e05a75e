"""Does `bench` claim what is not there, and find what is? Trials with a real engine on this machine.

    python -m benchmarks.aa_trials alike [--trials 20]  # one engine as two: how often is there no difference?
    python -m benchmarks.aa_trials slowed               # against itself, every step 10 % longer: found?

`slowed` measures both in one run with few repeats, reads from its results how many repeats of each would find
such a difference in TPOT p50, measures both anew with that many and reads the verdict. What follows `--` goes
to every `bench online`. A machine that does something else meanwhile answers another question.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from benchmarks.bench_online import FailedRunError, bench_online, compare_variants, parse_arguments
from harness.schema.results import Comparison, OnlineResults
from rosemodels import gpt2
from rosemodels.gpt2 import Shape

LOAD = ["--device", "cpu", "--max-model-len", "256", "--warmup", "16"]
#: Trials of `alike` replay a trace; those of `slowed` ask one request after the other, so that they watch the
#: engine's step and no queue.
TRACE = [
    *("--model", "random:gpt2-tiny", "--n", "40"),
    *("--fit", "clip", "--max-output-len", "32", "--scales", "0.4"),
]
CLOSED = ["--n", "20", "--concurrency", "1", "--input-len", "64", "--output-len", "64", "--no-check-answers"]
#: The model of `slowed`. Where a step reads more, what else uses the machine's memory moves it by 10 to 20 %
#: from minute to minute.
SMALL = Shape(layers=4, width=64, heads=2)
#: What a trial of `slowed` looks at: every step of the engine is in it, and little else.
WATCHED = ("tpot_ms", "p50")
PILOT_REPEATS = 8


#: On PYTHONPATH, what makes the engine slower.
SLOWED = Path(__file__).parent / "slowed"


def alike(trials: int, repeats: int, out: Path, options: Sequence[str], first: int = 0) -> bool:
    """Make A/A runs with the seeds from `first` on. Returns whether 19 of 20 or more found no difference."""
    without = 0
    for trial in range(first, first + trials):
        begin = time.monotonic()
        try:
            aa = ["--engines", "roseinfer", "--aa", "--repeats", str(repeats), "--seed", str(trial)]
            run = bench_online([*LOAD, *TRACE, *aa, *options], out)
        except FailedRunError as error:
            print(f"trial {trial + 1}: {error}", flush=True)
            continue
        results = OnlineResults.model_validate_json((run / "online_results.json").read_bytes())
        enough = [comparison for comparison in results.comparisons if comparison.verdict != "not enough data"]
        wrong = [comparison for comparison in enough if comparison.verdict != "no difference"]
        ratios = ", ".join(
            f"{comparison.metric} {comparison.statistic} {comparison.ratio:.3f}" for comparison in wrong
        )
        invalid = sum(not summary.valid for summary in results.summaries if summary.repeat is not None)
        without += bool(enough) and not wrong
        print(
            f"trial {trial + 1}: {f'a difference: {ratios}' if wrong else 'no difference'}, {len(enough)} "
            f"comparisons, {invalid} invalid cells, {time.monotonic() - begin:.0f} s; {run}",
            flush=True,
        )
    print(f"no difference in {without} of {trials} trials (each at 5 % for all its comparisons)")
    return without >= ceil(0.95 * trials)


def slowed(most: int, out: Path, options: Sequence[str]) -> bool:
    """Return whether a slowdown of 10 % is found with the repeats that the tool asks for."""
    env = {"PYTHONPATH": str(SLOWED), "SLOWED_BY": "0.1"}
    variant = {"label": "slowed", "cpu_threads": 1, "env": env}
    model = out / "model"
    if not model.exists():
        model.mkdir(parents=True)
        gpt2.write(model, SMALL)

    def compare(repeats: int) -> Comparison:
        both = [*CLOSED, "--model", str(model), "--engines", "roseinfer@one-thread,roseinfer@slowed"]
        both += ["--repeats", str(repeats)]
        comparisons = compare_variants({"slowed": variant}, [*LOAD, *both, *options], out)
        return next(each for each in comparisons if (each.metric, each.statistic) == WATCHED)

    print(f"{PILOT_REPEATS} repeats of each:", flush=True)
    needed = compare(PILOT_REPEATS).repeats_to_find["10 %"]
    if needed is None or needed > most:
        print(f"the tool asks for {needed or 'too many'} repeats: this machine is too noisy now")
        return False
    print(f"the tool asks for {needed} repeats of each to find 10 % in {' '.join(WATCHED)}:", flush=True)
    verdict = compare(needed).verdict
    print(f"the slower engine is {'found' if verdict == 'better' else f'not found ({verdict})'}")
    return verdict == "better"


def main() -> int:
    """0 when `bench` was right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["alike", "slowed"])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial of `alike`")
    parser.add_argument("--repeats", type=int, default=3, help="of each side of a trial of `alike`")
    parser.add_argument("--most", type=int, default=60, help="repeats that `slowed` makes at most")
    parser.add_argument("--out", type=Path, default=Path("outputs/trials"))
    arguments, options = parse_arguments(parser)
    try:
        if arguments.what == "alike":
            right = alike(arguments.trials, arguments.repeats, arguments.out, options, arguments.first)
        else:
            right = slowed(arguments.most, arguments.out, options)
    except FailedRunError as error:
        print(error)
        return 1
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
