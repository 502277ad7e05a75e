"""`bench online` in a process of its own, as the benchmarks of this project run it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.schema.results import Comparison, OnlineResults


class FailedRunError(Exception):
    """`bench online` measured nothing, or not all that it was to measure."""


def bench_online(options: Sequence[str], out: Path, *, env: Mapping[str, str] | None = None) -> Path:
    """The folder of its run, below `out`. What it logs goes to stderr.

    Raises FailedRunError.
    """
    words = "-m harness.cli.app online --anyway --quiet --out"
    command = [sys.executable, *words.split(), str(out), *options]
    done = subprocess.run(command, env=os.environ | (env or {}), text=True, stdout=subprocess.PIPE)
    if done.returncode != 0 or not done.stdout.strip():
        raise FailedRunError(f"{' '.join(command)} ended with {done.returncode}")
    return Path(done.stdout.strip()).parent


def compare_variants(variants: Mapping[str, Any], options: Sequence[str], out: Path) -> list[Comparison]:
    """Measure roseinfer with `variants`. Prints each comparison, and where the run is.

    Raises FailedRunError.
    """
    out.mkdir(parents=True, exist_ok=True)
    engines = (out / "variants.yaml").resolve()
    engines.write_text(yaml.safe_dump({"roseinfer": {"variants": dict(variants)}}))
    run = bench_online(options, out, env={"BENCH_ENGINES": str(engines)})
    results = OnlineResults.model_validate_json((run / "online_results.json").read_bytes())
    for comparison in results.comparisons:
        ends = "" if comparison.ci is None else f" ({comparison.ci[0]:.3f} to {comparison.ci[1]:.3f})"
        spread = "" if comparison.spread is None else f", repeats {comparison.spread:.1%} apart"
        what = f"{comparison.load}: {comparison.metric} {comparison.statistic}"
        print(f"  {what}: {comparison.ratio:.3f}{ends}{spread}, {comparison.verdict}")
    print(f"  {run}", flush=True)
    return results.comparisons


def parse_arguments(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line before `--`. Returns it, and the options of `bench online` after that."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:cut]), words[cut + 1 :]
