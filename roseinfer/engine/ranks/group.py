"""Starts, connects, monitors and ends the other tensor-parallel ranks of an engine, from rank 0."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from roseinfer.batch import Batch, Ints
from roseinfer.config import ConfigError, EngineConfig, RankError
from roseinfer.engine.ranks.messages import (
    PROFILE,
    STEP,
    Profile,
    Start,
    StepLimits,
    receive,
)
from roseinfer.engine.ranks.processes import await_all, end, is_stopped, states
from roseinfer.engine.ranks.step_memory import StepMemory, StepSizes
from roseinfer.models.ranks import ALONE, Ranks, is_missing
from roseinfer.modules import module_command

#: How long the other ranks may load after rank 0 has: so many seconds, or so many times as long as rank 0
#: took, or the rank timeout, whichever is longest.
LOAD_S, LOAD_TIMES = 60.0, 3.0
#: Seconds that are waited for a rank to end, unless it is stopped.
END_S = 3.0
#: Seconds that a rank may take to write its profile.
_WRITE_S = 120.0


class RankGroup:
    """Ranks 1 to `config.tensor_parallel_size` - 1, which start loading on construction. `on_end` is called
    from another thread, with an explanation, when a connected rank ends unexpectedly or does not respond.

    They end when the group is closed or garbage-collected, and with this process, whatever they are doing.
    The thread that makes the group must live as long as the group: Linux kills the ranks when it ends.
    """

    def __init__(self, config: EngineConfig, on_end: Callable[[str], None] | None = None) -> None:
        self._memory: StepMemory | None = None
        self._config, self._timeout_s = config, config.rank_timeout_s
        self._begun = time.monotonic()
        self._ends: dict[int, str] = {}
        self._ended = threading.Condition()
        self._on_end = on_end
        self._deadline: float | None = None  # of the wait for another rank, on the monotonic clock
        self._wait_limit_s = self._timeout_s
        self.ranks: Ranks = ALONE
        self._sockets: list[socket.socket] = []
        self.processes = [self._start(config, rank) for rank in range(1, config.tensor_parallel_size)]
        self._closing = threading.Event()
        self._close = weakref.finalize(self, _close, self._closing, self._sockets, self.processes)

    def _start(self, config: EngineConfig, rank: int) -> subprocess.Popen[bytes]:
        near, far = socket.socketpair()
        self._sockets.append(near)
        with far:
            arguments = [msgspec.json.encode(config).decode(), str(rank), str(far.fileno())]
            return subprocess.Popen(
                [*module_command("roseinfer.engine.ranks.follow"), *arguments],
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def connect(self, ranks: Ranks, num_blocks: int, limits: StepLimits) -> None:
        """Wait until every rank has loaded, then connect them.

        Raises:
            ConfigError: A rank could not load, or takes too long.
            RankError: A rank has ended since, or does not respond.
        """
        self.ranks = ranks
        load_s = time.monotonic() - self._begun
        limit_s = round(max(LOAD_S, LOAD_TIMES * load_s, self._timeout_s), 1)
        self._await_all("loaded its part of the model", limit_s)
        sizes = step_sizes(self._config, limits)
        descriptor = StepMemory.create(sizes)
        self._memory = StepMemory(descriptor, sizes, self._config.block_size)
        with TemporaryDirectory(prefix="roseinfer-ranks-") as folder:
            start = Start(num_blocks, limits, sizes, str(Path(folder, "ranks")))
            for sock in self._sockets:
                with contextlib.suppress(ConnectionError):  # it has ended, which is found next
                    socket.send_fds(sock, [msgspec.json.encode(start)], [descriptor])
            os.close(descriptor)
            self._await_all("allocated its cache", limit_s)
            for rank, process in enumerate(self.processes, start=1):
                threading.Thread(target=_watch, args=(weakref.ref(self), rank, process), daemon=True).start()
            ranks.room(sizes.tokens, sizes.logits)
            with self.watched():
                ranks.connect(Path(start.file), self._timeout_s)

    def _await_all(self, what: str, limit_s: float) -> None:
        """Wait for every rank's RankDone. Raises ConfigError where a rank could not go on, or not in time."""
        error = await_all(self._sockets, self.processes, what, self._timeout_s, limit_s)
        if error is not None:
            self.close()
            raise ConfigError(error)

    def announce(self, batch: Batch, decoded: Ints, prompt_rows: Ints) -> None:
        """Send a step to every rank: `decoded` `[D]`, input tokens of decode rows, and `prompt_rows` `[n]`,
        rows whose logits give logprobs of prompts. Raises RankError when one has ended."""
        assert self._memory is not None
        self._memory.write(batch, decoded, prompt_rows)
        for sock in self._sockets:
            try:
                sock.send(STEP)
            except OSError:
                raise self._error() from None

    def profile(self, order: Profile) -> str | None:
        """Start or end a profile of the ranks. Ending it waits until they have written their files. Returns
        the first error message of a rank, or None."""
        failures: list[str | None] = []
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # the next step finds that it has ended
                sock.sendall(PROFILE + msgspec.json.encode(order) + b"\n")
        for rank, sock in enumerate(self._sockets if order.path is None else (), start=1):
            sock.settimeout(_WRITE_S)
            try:
                failures.append(message.error if (message := receive(sock)) is not None else None)
            except TimeoutError:
                failures.append(f"rank {rank} has not written its profile within {_WRITE_S:.0f} s")
            except OSError:  # the next step finds that it has ended
                pass
            finally:
                sock.settimeout(None)
        return next(filter(None, failures), None)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise RankError in place of the RuntimeError of a collective in which a rank is missing."""
        try:
            yield
        except RuntimeError as error:
            if not is_missing(error):
                raise
            raise self._error() from error

    @contextlib.contextmanager
    def waited_for(self, limit_s: float | None = None) -> Iterator[None]:
        """Limit a wait for this rank's GPU, which in turn waits for those of other ranks, to `limit_s`
        seconds, else to the engine's rank timeout. Raises RankError when a rank has ended or time is up."""
        if self._ends:
            raise self._error()
        self._wait_limit_s = self._timeout_s if limit_s is None else limit_s
        self._deadline = time.monotonic() + self._wait_limit_s
        try:
            yield
        finally:
            self._deadline = None
        if self._ends:
            raise self._error()

    def watch_waits(self) -> None:
        """Start the thread that enforces the limits of `waited_for`."""
        threading.Thread(target=_watch_waits, args=(weakref.ref(self), self._closing), daemon=True).start()

    def close(self) -> None:
        """End the ranks."""
        self._close()

    def _error(self) -> RankError:
        patience_s = 0.0 if any(map(is_stopped, self.processes)) else END_S
        with self._ended:
            self._ended.wait_for(lambda: self._ends, patience_s)
            return RankError(next(iter(self._ends.values()), self._silent()))

    def _silent(self) -> str:
        waited = f"a step has waited {self._wait_limit_s:g} s for another rank of the engine"
        return f"{waited} ({states(self.processes)})"

    def last_words(self, rank: int) -> str:
        """Describe how a rank ended, and why, if it has reported that."""
        explanation = end(rank, self.processes[rank - 1])
        try:
            report = receive(self._sockets[rank - 1])
        except OSError:  # closed here
            report = None
        if report is None or report.error is None:
            return explanation
        return f"{explanation}: {report.error}"

    def _note(self, rank: int, explanation: str) -> None:
        with self._ended:
            self._ends[rank] = explanation
            self._ended.notify_all()
        self.ranks.give_up()
        if self._on_end is not None and not self._closing.is_set():
            self._on_end(explanation)


def step_sizes(config: EngineConfig, limits: StepLimits) -> StepSizes:
    """The most that a step may have within `limits`."""
    requests = config.max_active_requests
    tokens = max(limits.prefill_max_tokens, limits.max_model_len) + requests
    return StepSizes(tokens, requests, -(-limits.max_model_len // config.block_size))


def _watch(group: weakref.ref[RankGroup], rank: int, process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if (alive := group()) is not None:
        alive._note(rank, alive.last_words(rank))


def _watch_waits(group: weakref.ref[RankGroup], closing: threading.Event) -> None:
    while not closing.wait(1.0) and (alive := group()) is not None:
        deadline = alive._deadline
        if deadline is not None and time.monotonic() > deadline:
            alive._note(0, alive._silent())
            return
        del alive


def _close(
    closing: threading.Event, sockets: list[socket.socket], processes: list[subprocess.Popen[bytes]]
) -> None:
    closing.set()
    for sock in sockets:
        sock.close()
    for process in processes:
        try:
            process.wait(0 if is_stopped(process) else END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
