"""Compares every percentile that the client measures with what the mock server did.

    python -m benchmarks.client_accuracy [--processes 1,2]

100 requests of 64 tokens (640 with 64 in flight), TTFT 40 ms, ITL 5 ms, with 1, 8 and 64 in flight, in the
shapes below. Prints errors in ms as a Markdown table. Ends with code 1 if a percentile is off by more than
0.5 ms and by more than 1 %.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from harness.calibration.calibrate import measure_accuracy

PERCENTILES = (50, 90, 99)
METRICS = ("ttft", "tpot", "itl", "e2e")
TOKENS = 64
#: Off is what differs by more than both.
LIMIT_MS, LIMIT_SHARE = 0.5, 0.01
SHAPES: dict[str, dict[str, object]] = {
    "a token a chunk": {},
    "an empty chunk first": {"empty_first": True},
    "2 tokens a chunk": {"tokens_per_chunk": 2},
    "4 tokens a chunk": {"tokens_per_chunk": 4},
    "8 tokens a chunk": {"tokens_per_chunk": 8},
    "1, 3, 2 and 8 in turn": {"chunk_tokens": [1, 3, 2, 8]},
    "the first 16 held back": {"first_tokens": 16},
    "4 chunks a write": {"chunks_per_write": 4},
    "4 tokens a chunk, a write each": {"tokens_per_chunk": 4, "split_writes": True},
    "16 held back, a write each": {"first_tokens": 16, "split_writes": True},
}


def requests_of(concurrency: int) -> int:
    """At least a hundred, and ten for each in flight."""
    return max(100, 10 * concurrency)


def main() -> int:
    """Measure, print one line a load and shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", default="1", help="client processes")
    parser.add_argument("--concurrency", default="1,8,64", help="requests in flight")
    options = parser.parse_args()
    off = 0
    heads = [f"{metric.upper()} p50 / p90 / p99" for metric in METRICS]
    print(f"| processes | in flight | chunks | {' | '.join(heads)} |\n|---|---|---|{'---|' * len(heads)}")
    for processes in map(int, options.processes.split(",")):
        for concurrency in map(int, options.concurrency.split(",")):
            if concurrency < processes:
                continue
            for shape, behaviour in SHAPES.items():
                accuracy = measure_accuracy(
                    processes=processes,
                    concurrency=concurrency,
                    requests=requests_of(concurrency),
                    tokens=TOKENS,
                    behaviour={"ttft_ms": 40.0, "itl_ms": 5.0, **behaviour},
                )
                cells = []
                for metric in METRICS:
                    measured = np.percentile(getattr(accuracy.measured, metric), PERCENTILES)
                    true = np.percentile(getattr(accuracy.true, metric), PERCENTILES)
                    wrong = np.abs(measured - true) > np.maximum(LIMIT_MS, LIMIT_SHARE * true)
                    off += int(wrong.sum())
                    errors = zip(measured - true, wrong, strict=True)
                    cells.append(" / ".join(f"{error:+.3f}{' OFF' if w else ''}" for error, w in errors))
                print(f"| {processes} | {concurrency} | {shape} | {' | '.join(cells)} |", flush=True)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
