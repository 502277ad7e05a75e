"""A mock server in its own process, and requests to it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from harness.errors import BenchError
from harness.loadgen.load_plan import Target, WireRequest
from harness.mock_server.script import ServedRequest
from harness.paths import module_command

PROMPT_TOKENS = 128


class MockServerProcess:
    """A running mock server. Read `served_requests` after the answers have ended."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port = process, port
        self.target = Target("127.0.0.1", port, "/v1/completions")
        self._log = log

    def served_requests(self) -> dict[int, ServedRequest]:
        """Read the server's record, by the index of the client's request."""
        return {int(served.user or -1): served for served in self.all_served_requests()}

    def all_served_requests(self) -> list[ServedRequest]:
        """Read the server's record, in the order in which the answers were over."""
        return [msgspec.json.decode(line, type=ServedRequest) for line in self._log.read_bytes().splitlines()]


@contextmanager
def mock_server(*options: str, cpus: Sequence[int] | None = None) -> Iterator[MockServerProcess]:
    """Run `python -m harness.mock_server` with `options` on `cpus`; it ends with this process at the latest.

    Raises:
        BenchError: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="rosebench-mock-") as folder:
        log = Path(folder) / "served_requests.jsonl"
        log.touch()
        process = subprocess.Popen(
            [*module_command("harness.mock_server"), "--with-stdin", "--log", str(log), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            if cpus:
                os.sched_setaffinity(process.pid, cpus)
            assert process.stdout is not None
            word, _, port = process.stdout.readline().partition(b" ")
            if word != b"port":
                raise BenchError(f"the mock server ended with code {process.wait()}")
            try:
                yield MockServerProcess(process, int(port), log)
            finally:
                process.kill()


def ask(index: int, tokens: int, behaviour: Mapping[str, object], t_sched_s: float | None) -> WireRequest:
    """A request for `tokens` tokens, answered as described by `behaviour`."""
    body = {
        "prompt": [1] * PROMPT_TOKENS,
        "max_tokens": tokens,
        "stream": True,
        "user": str(index),
        "behaviour": behaviour,
    }
    return WireRequest(index, t_sched_s, msgspec.json.encode(body))
