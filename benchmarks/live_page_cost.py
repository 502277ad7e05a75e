"""What `bench online --serve` costs the measurement: `python -m benchmarks.live_page_cost`.

Pairs of runs of roseinfer on this machine, one with the live page and a reader that asks every two seconds
and fetches each new page, one without; which comes first alternates. Prints the ratio (with over without) of
latencies and of the output rate, by load: the geometric mean over pairs, its 95 % interval by Student's t on
logarithms.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ratio import ratio_interval
from harness.schema.load import load_text
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import OnlineResults

OPTIONS = ["--engines", "roseinfer", "--concurrency", "1,2,4", "--n", "40", "--rounds", "10"]
_POLL_S = 2.0
_VALUES: dict[str, Callable[[OnlineSummary], Any]] = {
    "TTFT p50": lambda s: s.ttft_ms.p50,
    "TTFT p90": lambda s: s.ttft_ms.p90,
    "TPOT p50": lambda s: s.tpot_ms.p50,
    "TPOT p90": lambda s: s.tpot_ms.p90,
    "output tok/s": lambda s: s.output_tok_per_s,
}


def follow(address: str, ended: threading.Event, sizes: list[int]) -> None:
    """Read the live page as a browser does, until the run has ended."""
    seen = ""
    while not ended.wait(_POLL_S):
        with suppress(OSError):
            with urllib.request.urlopen(f"{address}version", timeout=60) as answer:
                found = answer.read().decode()
            if found != seen:
                with urllib.request.urlopen(address, timeout=60) as answer:
                    sizes.append(len(answer.read()))
                seen = found


def measure(folder: Path, options: list[str], serve: bool) -> tuple[list[OnlineSummary], int]:
    """Pooled summaries of a run, and how many pages were read meanwhile."""
    command = [sys.executable, "-m", "harness.cli.app", "online", "--json", "--out", str(folder), *options]
    ended, sizes = threading.Event(), list[int]()
    with subprocess.Popen(
        [*command, *(["--serve", "0"] if serve else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        printed: list[str] = []
        reader = threading.Thread(target=lambda: printed.append(process.stdout.read()))  # type: ignore[union-attr]
        reader.start()
        followers = []
        for line in process.stderr:
            if found := re.search(r"live page: (\S+)", line):
                followers.append(threading.Thread(target=follow, args=(found[1], ended, sizes)))
                followers[-1].start()
        reader.join()
        ended.set()
        for follower in followers:
            follower.join()
    results = OnlineResults.model_validate(json.loads(printed[0]))
    return [summary for summary in results.summaries if summary.repeat is None], len(sizes)


def main() -> None:
    """All pairs, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("options", nargs="*", default=OPTIONS, help="of bench online, after --")
    given = parser.parse_args()
    logs: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for pair in range(given.pairs):
            found: dict[bool, list[OnlineSummary]] = {}
            for serve in (True, False) if pair % 2 else (False, True):
                found[serve], pages = measure(Path(name), given.options, serve)
                if serve:
                    print(f"pair {pair + 1}: {pages} pages were read", flush=True)
            for on, off in zip(found[True], found[False], strict=True):
                for value, of in _VALUES.items():
                    logs.setdefault((load_text(on.load), value), []).append(float(np.log(of(on) / of(off))))
    for (load, value), ratios in logs.items():
        low, ratio, high = ratio_interval(ratios)
        print(f"{load}, {value}: {ratio:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
