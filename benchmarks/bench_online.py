"""`bench online` in a process of its own, as the benchmarks of this project run it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class FailedRunError(Exception):
    """`bench online` measured nothing, or not all that it was to measure."""


def bench_online(
    options: Sequence[str], out: Path, *, env: Mapping[str, str] | None = None, partly: bool = False
) -> Path:
    """The folder of its run, below `out`. What it logs goes to stderr.

    Raises FailedRunError; not where `partly` and some engine or scale was measured.
    """
    command = [
        sys.executable,
        "-m",
        "harness.cli.app",
        "online",
        "--anyway",
        *options,
        "--out",
        str(out),
        "--quiet",
    ]
    done = subprocess.run(command, env=os.environ | (env or {}), text=True, stdout=subprocess.PIPE)
    if done.returncode not in ((0, 3) if partly else (0,)) or not done.stdout.strip():
        raise FailedRunError(f"{' '.join(command)} ended with {done.returncode}")
    return Path(done.stdout.strip()).parent


def parse_arguments(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line before `--`. Returns it, and the options of `bench online` after that."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:cut]), words[cut + 1 :]
