"""Do notices reach every place? Two runs with roseinfer, one disturbed and one saturated.

    python -m benchmarks.noticed_runs [--out outputs/noticed]

In the middle of the first, two other processes compute without end for some seconds. The second asks for more
than the engine can do. Prints what was noticed, and in which of the five places its text is found: terminal,
report, summary.md, results.csv (its kind) and JSON. Ends with code 1 where one is missing.
"""

from __future__ import annotations

import argparse
import csv
import html
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.schema.results import OnlineResults

MODEL = ["--model", "random:gpt2-tiny", "--device", "cpu", "--max-model-len", "1024", "--no-check-answers"]
#: By the kind of notice that a run must have, its options.
RUNS = {
    "disturbed": ["--concurrency", "2", "--n", "100", "--min-duration", "24"],
    "behind": ["--trace", "builtin", "--scales", "0.03", "--n", "300"],
}
#: When the other processes begin, after the first request, and how long they compute, in seconds.
BEGIN_S, LAST_S = 10.0, 8.0
BUSY = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


@contextmanager
def two_busy_processes() -> Iterator[None]:
    """Two processes of a session of their own, so that they are none of the run's."""
    command = [sys.executable, "-c", BUSY.format(seconds=LAST_S)]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.extend(subprocess.Popen(command, start_new_session=True) for _ in range(2))

    timer = threading.Timer(BEGIN_S, start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for process in started:
            process.kill()
            process.wait()


def measure(options: list[str], out: Path, *, disturb: bool) -> tuple[Path, str]:
    """The run's folder, and what `bench online` printed."""
    command = [sys.executable, "-m", "harness.cli.app", "online", "--engines", "roseinfer", *MODEL, *options]
    with subprocess.Popen(
        [*command, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as bench:
        assert bench.stderr is not None and bench.stdout is not None
        lines: list[str] = []
        for line in bench.stderr:
            lines.append(line)
            if disturb and re.match(r"\[1/\d+\].* requests$", line):
                with two_busy_processes():
                    lines += bench.stderr
        report = bench.stdout.read().strip()
    if not report:
        raise SystemExit("".join(lines))
    return Path(report).parent, "".join(lines)


def places(run: Path, terminal: str, kind: str, text: str) -> dict[str, bool]:
    """Where a notice is."""
    page = html.unescape(re.sub(r"<[^>]+>", "", (run / "report.html").read_text()))
    rows = csv.DictReader((run / "results.csv").read_text().splitlines())
    return {
        "terminal": text in terminal,
        "report": text in page or _begun(text) in page,
        "summary.md": text in (markdown := (run / "summary.md").read_text().replace("\\", ""))
        or _begun(text) in markdown,
        "CSV": any(kind in row["notices"].split() for row in rows),
        "JSON": text in (run / "online_results.json").read_text(),
    }


def _begun(text: str) -> str:
    """As it is written at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("outputs/noticed"))
    out = parser.parse_args().out
    missing = 0
    for kind, options in RUNS.items():
        run, terminal = measure(options, out, disturb=kind == "disturbed")
        results = OnlineResults.model_validate_json((run / "online_results.json").read_bytes())
        [summary] = [summary for summary in results.summaries if summary.repeat is None]
        found = [notice for notice in summary.notices if notice.kind == kind]
        missing += not found
        for notice in found:
            there = places(run, terminal, kind, notice.text)
            missing += not all(there.values())
            said = ", ".join(f"{place} {'yes' if is_there else 'NO'}" for place, is_there in there.items())
            print(f"{kind}: {notice.text}\n  {said}", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
