"""Compares every percentile that the client measures with what the mock server did.

    python -m benchmarks.client_accuracy [--processes 1,2]

200 requests of 64 tokens, TTFT 40 ms, ITL 5 ms, an empty first chunk, chunks of 1 and of 4 tokens, and 1, 8
and 32 requests in flight. Ends with code 1 if a percentile is off by more than 0.5 ms and by more than 1 %.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from harness.calibration.accuracy import BEHAVIOUR, measure_accuracy

PERCENTILES = (50, 90, 95, 99)
METRICS = ("ttft", "tpot", "itl", "e2e")
REQUESTS, TOKENS = 200, 64


def main() -> int:
    """Measure, print one line a load and metric."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", default="1,2", help="client processes")
    parser.add_argument("--concurrency", default="1,8,32", help="requests in flight")
    options = parser.parse_args()
    off = 0
    print(
        "| processes | in flight | tokens a chunk | metric | "
        + " | ".join(f"p{p}" for p in PERCENTILES)
        + " |"
    )
    print("|---" * (4 + len(PERCENTILES)) + "|")
    for processes in map(int, options.processes.split(",")):
        for concurrency in map(int, options.concurrency.split(",")):
            if concurrency < processes:
                continue
            for merging in (1, 4):
                found = measure_accuracy(
                    processes=processes,
                    concurrency=concurrency,
                    requests=REQUESTS,
                    tokens=TOKENS,
                    behaviour={**BEHAVIOUR, "tokens_per_chunk": merging},
                )
                for metric in METRICS:
                    seen = np.percentile(getattr(found.measured, metric), PERCENTILES)
                    true = np.percentile(getattr(found.true, metric), PERCENTILES)
                    wrong = np.abs(seen - true) > np.maximum(0.5, 0.01 * true)
                    off += int(wrong.sum())
                    cells = [
                        f"{s:.3f} ({s - t:+.3f}){' OFF' if w else ''}"
                        for s, t, w in zip(seen, true, wrong, strict=True)
                    ]
                    print(
                        f"| {processes} | {concurrency} | {merging} | {metric} | {' | '.join(cells)} |",
                        flush=True,
                    )
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
