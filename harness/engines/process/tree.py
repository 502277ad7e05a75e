"""A process tree that is always ended: started, watched and stopped through its guard."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from harness.engines.process.guard import KILL_PATIENCE_S, Order, family
from harness.errors import CleanupError, EngineError
from harness.paths import module_command
from harness.plain_text import one_line

#: Seconds allowed to the guard itself, beyond the engine's grace and the kill.
GUARD_SLACK_S = 10.0
#: For a command that may take as long as it needs.
WEEK_S = 7 * 24 * 3600.0
TAIL_LINES = 15
#: Of a log, in which the cause may be far above its end: each process of an engine adds its own traceback.
CAUSE_LINES = 1000
#: Environment variable that marks the processes of a tree, to find them if their guard was killed.
MARK = "ROSEBENCH_TREE"


def tail(log: Path, lines: int = TAIL_LINES, start: int = 0) -> str:
    """The last lines that are not empty, after byte `start` of the file."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - 64 * 1024))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def describe_exit(code: int) -> str:
    """Write `exit code 1`, or `SIGKILL`."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


class Guarded:
    """A command and all its descendants, run as `order` says. `label` names it in error messages.

    Raises:
        EngineError: The command cannot be run.
    """

    def __init__(self, label: str, order: Order) -> None:
        self.label = label
        self.log = log = Path(order.log)
        self.log_start = log.stat().st_size if log.exists() else 0
        self._grace_s = order.grace_s
        self._exit: int | None = None
        self._survivors: list[int] | None = None
        self._unread = b""
        self._mark = uuid.uuid4().hex
        order = replace(order, env={**order.env, MARK: self._mark})
        log.parent.mkdir(parents=True, exist_ok=True)
        self._guard = subprocess.Popen(
            module_command("harness.engines.process.guard"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._pipe_in, self._pipe_out = self._guard.stdin, self._guard.stdout
        try:
            self._pipe_in.write(json.dumps(asdict(order)).encode() + b"\n")
            self.pid = self._first_message(order.argv[0])
        except BaseException:
            self._pipe_in.close()
            raise

    def _first_message(self, program: str) -> int:
        while (message := self._message(timeout_s=60.0)) is not None:
            if "pid" in message:
                return int(message["pid"])
            if "error" in message:
                raise EngineError(f"{self.label} cannot be started: {message['error']}", f"check {program}")
        raise EngineError(f"the guard process of {self.label} did not start", "see the error printed above")

    def _message(self, timeout_s: float) -> dict[str, Any] | None:
        """The guard's next message; None if none arrives in time or the guard has ended."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            remaining_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._pipe_out], [], [], remaining_s)[0]:
                return None
            piece = os.read(self._pipe_out.fileno(), 65536)
            if not piece:
                self._guard.wait()
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        self._exit = message.get("exit", self._exit)
        self._survivors = message.get("survivors", self._survivors)
        return message

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the exit code of the command (negative: a signal), at most that long; None: still running.

        Raises:
            EngineError: the guard was killed, so the exit code is unknown.
        """
        deadline = time.monotonic() + timeout_s
        while self._exit is None:
            if self._message(max(0.0, deadline - time.monotonic())) is None:
                if self._guard.poll() is not None:
                    raise EngineError(f"the guard process of {self.label} was killed", "run it again")
                return None
        return self._exit

    def finish(self, timeout_s: float = WEEK_S) -> int | None:
        """Wait for its end, at most that long, and end what is left of it. Returns as `wait` does."""
        try:
            return self.wait(timeout_s)
        finally:
            self.stop()

    def pids(self) -> list[int]:
        """PIDs of the living processes of the tree, without the guard."""
        return [process.pid for process in family(self._guard.pid)]

    def stop(self) -> None:
        """End the whole tree and return when all its processes have ended. May be called again.

        Raises:
            CleanupError: a process could not be killed; the message names its PID.
        """
        self._pipe_in.close()
        deadline = time.monotonic() + self._grace_s + KILL_PATIENCE_S + GUARD_SLACK_S
        while self._guard.poll() is None and (remaining_s := deadline - time.monotonic()) > 0:
            self._message(remaining_s)
        if self._survivors is None:
            self._survivors = self._sweep()
        if self._survivors:
            pids = ", ".join(map(str, self._survivors))
            raise CleanupError(f"{self.label} could not be ended: PID {pids}", f"run `kill -9 {pids}`")

    def _sweep(self) -> list[int]:
        """Kill the processes with the mark or in the command's session, if the guard cannot.

        Returns the PIDs that survived.
        """
        self._guard.kill()
        self._guard.wait()
        members = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in members:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return [process.pid for process in psutil.wait_procs(members, timeout=KILL_PATIENCE_S)[1]]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.pid or process.environ().get(MARK) == self._mark
        except (OSError, psutil.Error):
            return False

    def tail(self) -> str:
        """The last lines of its output."""
        return tail(self.log, start=self.log_start)

    def cause(self) -> str:
        """Reason of its end by its output, in one sentence."""
        return cause(tail(self.log, lines=CAUSE_LINES, start=self.log_start)) or "it wrote nothing"


#: A sentence in a table, not a log.
LONGEST = 300
#: What names a cause: an exception's last line, a program's own error, what C++ has thrown.
_CAUSE = re.compile(r"(?:\b[A-Za-z_][\w.]*(?:Error|Exception)\b|\berror|what\(\)): +\S.*", re.IGNORECASE)
#: Pydantic names the field and the fault in the two lines below.
_LISTED = re.compile(r"\d+ validation errors? for \S+$")
#: Errors that only say that another process, whose error is above, has ended.
_CONSEQUENCE = re.compile(r"see .*above|see stack trace", re.IGNORECASE)
_WARNING = re.compile(r"\b(INFO|WARNING)\b|\bwarn|Warning:")
#: What loggers put before their text: process, level, date, source.
_PREFIX = re.compile(r"^(?:\([^)]* pid=\d+\) *)?(?:(?:ERROR|CRITICAL) [\d: -]+ \[[^]]+\] *)?")


def cause(log: str) -> str:
    """The last error in a log that is no consequence of another, else its last error, else its last line."""
    lines = [text for line in log.splitlines() if (text := _PREFIX.sub("", line.strip()))]
    errors = [at for at, line in enumerate(lines) if _CAUSE.search(line) and not _WARNING.search(line)]
    causes = [at for at in errors if not _CONSEQUENCE.search(lines[at])]
    for at in (causes or errors)[-1:]:
        text = _CAUSE.search(lines[at])[0].removeprefix("error: ")  # type: ignore[index]
        listed = lines[at + 1 : at + 3] if _LISTED.search(text) else []
        return one_line(" ".join([text, *listed]).partition(" [type=")[0], LONGEST)
    return one_line(lines[-1], LONGEST) if lines else ""
