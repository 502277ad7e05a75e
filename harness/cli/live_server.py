"""The live page of a run, served to this machine alone by a process of its own.

    python -m harness.cli.live_server FOLDER FD      FD: a listening socket; it ends when stdin does

The process reads the run's folder and nothing else, and only when a browser asks. It runs where a CPU would
be idle otherwise, so that it takes no time from what is measured.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness.errors import BenchError, UsageError
from harness.paths import module_command
from harness.plain_text import visible
from harness.report.live_page import live_page, version

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")


def listen(port: int) -> socket.socket:
    """A socket on a port of this machine, any free one for 0.

    Raises:
        UsageError: The port is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "there is no such port"
        raise UsageError(
            f"--serve {port}: {reason}", "choose another port, or --serve 0 for a free one"
        ) from None
    listener.listen()
    return listener


@contextmanager
def served(folder: Path, listener: socket.socket) -> Iterator[str]:
    """The page of the run in `folder` is served inside; gives its address."""
    command = [*module_command("harness.cli.live_server"), str(folder), str(listener.fileno())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,  # Ctrl-C is for the run
    )
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}/"
    finally:
        process.kill()  # it has nothing to finish
        process.communicate()


class LiveServer(ThreadingHTTPServer):
    """Serves `/` and `/version`; a page is made once for each version."""

    daemon_threads = True

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self._folder = listener, folder
        self._lock, self._made = threading.Lock(), ("", b"")

    @property
    def version(self) -> str:
        return version(self._folder)

    def page(self) -> bytes:
        """The newest page; the one before where a file is just being replaced.

        Raises:
            BenchError: The run cannot be read.
        """
        with self._lock:
            if self._made[0] != self.version:
                try:
                    self._made = self.version, live_page(self._folder).encode()
                except BenchError:
                    if not self._made[1]:
                        raise
            return self._made[1]


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in _NAMES:  # another site's name that leads here
            self._answer(HTTPStatus.FORBIDDEN, b"this page is for this machine", "text/plain")
        elif self.path == "/version":
            self._answer(HTTPStatus.OK, self.server.version.encode(), "text/plain")
        elif self.path == "/":
            try:
                self._answer(HTTPStatus.OK, self.server.page(), "text/html; charset=utf-8")
            except BenchError as error:
                text = visible(str(error)).encode()
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, text, "text/plain; charset=utf-8")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is / and /version", "text/plain")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with suppress(OSError):  # the browser is gone
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def _yield_to_others() -> None:
    """Run only where a CPU would be idle."""
    os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """Serve until stdin ends."""
    folder, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    _yield_to_others()
    server = LiveServer(folder, socket.socket(fileno=descriptor))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)  # whatever a request is doing


if __name__ == "__main__":
    main()
