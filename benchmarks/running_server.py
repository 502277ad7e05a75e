"""A `roseinfer` server as a process, for as long as it is measured."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]


@contextmanager
def running_server(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> Iterator[tuple[int, list[psutil.Process]]]:
    """Start a server. Yields its port and its processes: the first front end, then those that it started.

    What it logs goes to stderr. Raises SystemExit when it does not start.
    """
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            log: list[str] = []
            for line in server.stderr:
                log.append(line)
                if listening := re.search(r"listening on http://[^:]+:(\d+)", line):
                    break
            else:
                raise SystemExit(f"the server did not start: {''.join(log)}")
            threading.Thread(target=sys.stderr.writelines, args=(server.stderr,), daemon=True).start()
            first = psutil.Process(server.pid)
            yield int(listening[1]), [first, *first.children()]
        finally:
            server.terminate()
