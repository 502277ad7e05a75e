"""`bench` as a process, and in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness.cli.app import main
from tests.harness.bench_process import bench_command


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def bench(monkeypatch, capfd, integration):
    """Runs `bench` in this process."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            main()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        code = exit.value.code
        out, err = capfd.readouterr()
        return Done(code if isinstance(code, int) else 0, out, err)

    return run


class Bench:
    """`bench` in a process of its own, whose output is read line by line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            bench_command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.heard = ""
        self.offspring: dict[int, psutil.Process] = {}

    def until(self, words: str, send: signal.Signals | None = None) -> str:
        """Wait for a line of progress that has these words; returns it.

        `send`: a signal to send then. It does nothing else before: it stands still while its children are
        looked at, which takes a while.
        """
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.heard += line
            if words in line:
                if send is not None:
                    self.process.send_signal(signal.SIGSTOP)
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    self.offspring[child.pid] = child
                if send is not None:
                    self.process.send_signal(send)
                    self.process.send_signal(signal.SIGCONT)
                return line
        raise AssertionError(f"{words!r} is not in what was heard:\n{self.heard}")

    def end(self) -> Done:
        """Wait until it has ended."""
        out, err = self.process.communicate()
        return Done(self.process.returncode, out, self.heard + err)

    def left(self) -> list[psutil.Process]:
        """Processes that it had started and that outlive it, after a while."""
        return psutil.wait_procs(list(self.offspring.values()), timeout=60)[1]


@pytest.fixture
def start_bench(integration: None) -> Iterator[Callable[..., Bench]]:
    """Starts `bench` processes, and ends those that are left."""
    started: list[Bench] = []

    def start(*arguments: str | os.PathLike[str]) -> Bench:
        started.append(Bench(*(os.fspath(argument) for argument in arguments)))
        return started[-1]

    yield start
    for command in started:
        for process in command.offspring.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        command.process.kill()
        command.process.wait()
        for pipe in (command.process.stdout, command.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def quick(tmp_path: Path) -> list[str]:
    """Options that make an online run short."""
    there = ["--max-model-len", "1024", "--out", str(tmp_path / "runs")]
    return [*there, "--warmup", "0", "--no-calibrate", "--no-check-answers", "--no-figures"]
