"""What reading a server's own metrics costs it: the same load with and without, in pairs.

    python -m benchmarks.scrape_cost --base-url URL --tokenizer FOLDER [--pairs 8] [--interval 1]

Cells of a running server with its metrics read and not read, in changing order within the pairs. Printed are
the ratios of TPOT p50 and of output tok/s, with over without: mean and 95 % interval over the pairs
(Student's t on logarithms), and how long a reading took.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.ratio import ratio_interval
from harness.runs.online import run_online
from harness.runs.reader import OnlineRun, load_run
from harness.schema.online_settings import OnlineSettings


def _measured(options: argparse.Namespace, out: Path, read: bool) -> tuple[float, float, list[float]]:
    """TPOT p50 (ms), output tok/s, and how long each reading took (ms), of one cell."""
    settings = OnlineSettings.model_validate(
        {
            "base_url": options.base_url, "tokenizer": options.tokenizer, "out": out,
            "concurrency": [options.concurrency], "n": options.n, "input_len": 32, "output_len": 64,
            "calibrate": False, "check_answers": False, "accuracy": False, "warmup": options.concurrency,
            "server_metrics": read, "metrics_interval": options.interval,
        }
    )  # fmt: skip
    folder, results = run_online(settings, [], lambda event: None)
    run = load_run(folder, trust=True)
    assert isinstance(run, OnlineRun)
    [cell] = [summary for summary in results.summaries if summary.repeat is not None]
    assert cell.tpot_ms.p50 is not None, "no request succeeded"
    return cell.tpot_ms.p50, cell.output_tok_per_s, run.server["took_ms"].tolist() if read else []


def main() -> None:
    """Measure, and print a line a pair and the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--tokenizer", default="none", help="folder of the model's")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--n", type=int, default=32)
    options = parser.parse_args()
    logs, took = [], []
    with tempfile.TemporaryDirectory(prefix="scrape-cost-") as folder:
        for pair in range(options.pairs):
            order = (False, True) if pair % 2 else (True, False)
            found = {read: _measured(options, Path(folder), read) for read in order}
            (tpot_read, rate_read, readings), (tpot_alone, rate_alone, _) = found[True], found[False]
            logs.append([np.log(tpot_read / tpot_alone), np.log(rate_read / rate_alone)])
            took += readings
            tpot, rate = np.exp(logs[-1])
            print(f"pair {pair + 1}: TPOT {tpot:.3f}, tok/s {rate:.3f}", flush=True)
    for name, values in zip(("TPOT p50", "output tok/s"), np.transpose(logs), strict=True):
        low, mean, high = ratio_interval(values)
        print(f"{name}, read over not read: {mean:.4f} (95 % interval {low:.4f} to {high:.4f})")
    print(f"{len(took)} readings, {np.median(took):.2f} ms at the median, {np.max(took):.2f} at most")


if __name__ == "__main__":
    main()
