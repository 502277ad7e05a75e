"""`bench` in a process of its own, on a machine that other tests keep busy.

What `quick_runs` does in a test's process, this file, run as a program, does in its own.
"""

from __future__ import annotations

import runpy
import sys

#: Runs the commands that its input lists, one after another, and prints how each ended and what it printed. A
#: word with a star is a path.
SEVERAL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from glob import glob
from harness.cli.app import main
ended = []
for words in json.load(sys.stdin):
    words = [found for word in words for found in ("*" in word and glob(word) or [word])]
    sys.argv, out, err = ["bench", *words], io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        ended.append([end.code, out.getvalue(), err.getvalue()])
json.dump(ended, sys.stdout)
"""


def bench_command(*arguments: str) -> list[str]:
    """Return the command that runs `bench` with these arguments."""
    return [sys.executable, "-P", __file__, *arguments]


def quicken() -> None:
    """Before a cell this process waits for a moment, and its engines, beside other tests, start as quickly as
    these; a cell whose client was late, as other tests make it, is not measured again."""
    from harness.engines.process import guard
    from harness.runs import cell_runner

    cell_runner.MEASURED_DELAY_S = cell_runner.WARMUP_DELAY_S = cell_runner.WAITING_S = 0.05
    cell_runner.MAX_AGAIN = 0
    guard.SHARING_NICENESS = 0


def main() -> None:
    quicken()
    runpy.run_module("harness.cli.app", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
