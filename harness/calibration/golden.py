"""A golden server in a process of its own, and what is asked of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from harness.errors import BenchError
from harness.golden.behaviour import Deed
from harness.load.plan import Target, WireRequest

PROMPT_TOKENS = 128


class Golden:
    """A running golden server. `deeds` can be read once the answers are over."""

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.target = Target("127.0.0.1", port, "/v1/completions")
        self._log = log

    def deeds(self) -> dict[int, Deed]:
        """What the server did, by the index of the client's request."""
        return {int(deed.user or -1): deed for deed in self.all_deeds()}

    def all_deeds(self) -> list[Deed]:
        """What the server did, in the order in which the answers were over."""
        return [msgspec.json.decode(line, type=Deed) for line in self._log.read_bytes().splitlines()]


@contextmanager
def golden_server(*options: str, cpus: Sequence[int] | None = None) -> Iterator[Golden]:
    """Start `python -m harness.golden` with `options` on `cpus`; it ends with this process at the latest.

    Raises:
        BenchError: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="rosebench-golden-") as folder:
        log = Path(folder) / "deeds.jsonl"
        log.touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.golden", "--with-stdin", "--log", str(log), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if cpus:
            os.sched_setaffinity(process.pid, cpus)
        with process:
            assert process.stdout is not None
            word, _, port = process.stdout.readline().partition(b" ")
            if word != b"port":
                raise BenchError(f"the golden server ended with code {process.wait()}")
            try:
                yield Golden(int(port), log)
            finally:
                process.kill()


def ask(index: int, tokens: int, behaviour: Mapping[str, object], t_sched_s: float | None) -> WireRequest:
    """A request for `tokens` tokens, answered as `behaviour` says."""
    body = {
        "prompt": [1] * PROMPT_TOKENS,
        "max_tokens": tokens,
        "stream": True,
        "user": str(index),
        "golden": behaviour,
    }
    return WireRequest(index, t_sched_s, msgspec.json.encode(body))
