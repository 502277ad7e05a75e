"""Two checkouts of this project in turns: what their servers give, and what their load clients sustain.

    git worktree add ../before 393ab045
    taskset -c 0-15 python -m benchmarks.before_after ../before [--repeats 5] [-- OPTIONS OF bench online]

Both servers are measured by this checkout's client, with 1, 64 and 256 requests in flight; then the client of
each by its own `bench calibrate --quick`. Ratios are this checkout's to the other's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.bench_online import compare_variants, parse_arguments
from benchmarks.running_server import ROOT
from harness.schema.machines import Calibration

LOAD = ["--concurrency", "1,64,256", "--input-len", "128", "--output-len", "64"]
LOAD += ["--engines", "roseinfer@after,roseinfer@before"]


def ceiling(checkout: Path, cache: Path) -> tuple[float, float]:
    """Chunks and requests per second that a client process of `checkout` sustains."""
    env = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "harness.cli.app", "calibrate", "--quick"]
    subprocess.run(command, cwd=checkout, env=env, check=True, stdout=subprocess.DEVNULL)
    [file] = cache.rglob("calibration.json")
    [first] = Calibration.model_validate_json(file.read_bytes()).ceilings
    return first.chunks_per_s, first.requests_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("outputs/before-after"))
    arguments, options = parse_arguments(parser)
    before, out = arguments.before.resolve(), arguments.out.resolve()
    checkouts = {"after": ROOT, "before": before}
    variants = {name: {"label": name, "env": {"PYTHONPATH": str(path)}} for name, path in checkouts.items()}
    compare_variants(variants, [*LOAD, "--repeats", str(arguments.repeats), *options], out)
    ratios = []
    for repeat in range(arguments.repeats):
        order = (before, ROOT) if repeat % 2 else (ROOT, before)
        rates = {checkout: ceiling(checkout, out / "cache") for checkout in order}
        ratios.append([after / was for after, was in zip(rates[ROOT], rates[before], strict=True)])
    for name, values in zip(("chunks/s", "requests/s"), zip(*ratios, strict=True), strict=True):
        print(f"  client, {name}: {median(values):.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
