"""Measures what configs/published describes on the GPUs of this machine: several runs at a time.

    python -m scripts.published --out FOLDER [--sides 3] NAME… [--profile NAME] [-- OPTIONS]

NAME is a file of configs/published without .yaml, OPTIONS are passed to every run. Runs start in the order
given, each when enough GPUs are free, with the cores that belong to its GPUs. With --sides above 1 so many
repeats of an online run are measured at a time: each side is a pair of nodes of a Ray cluster
(scripts/ray_nodes.py), with GPUs of its own for the engine. Runs go to FOLDER/runs, their output to
FOLDER/NAME.log; its end is printed. A run that --profile names is profiled once it is measured, with torch's
profiler and Nsight Systems, on the GPUs of one engine; output to FOLDER/NAME.profile.log.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from harness.engines.placement import physical_cores
from harness.report.text.numbers import plural
from harness.telemetry import gpu
from scripts.ray_nodes import positive

CONFIGS = Path("configs/published")
BENCH = (sys.executable, "-m", "harness.cli.app")
#: Lines of a run's output that are printed.
LAST_LINES = 40


@dataclass(frozen=True)
class Run:
    """A file of configs/published, and how it is measured."""

    name: str
    sides: int
    #: Of each engine.
    gpus: int
    repeats: int
    offline: bool
    #: Whether it is profiled, too.
    profiled: bool = False
    bench: Sequence[str] = BENCH

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any], sides: int, *, profiled: bool = False) -> Run:
        """`sides` repeats at a time where it is an online run."""
        offline = "num_prompts" in settings or str(settings.get("preset", "")).endswith("offline")
        sides = 1 if offline else sides
        repeats = -(-settings.get("repeats", 1) // sides) * sides
        gpus = settings.get("tensor_parallel_size", 1) * settings.get("data_parallel_size", 1)
        return cls(name, sides, gpus, repeats, offline, profiled)

    def command(self, out: Path, options: Sequence[str]) -> list[str]:
        """Return the command that measures it, with results in `out`/runs."""
        config = ["--config", str(CONFIGS / f"{self.name}.yaml"), "--out", str(out / "runs"), *options]
        if self.offline:
            return [*self.bench, "offline", *config]
        if self.sides == 1:
            return [*self.bench, "online", *config]
        nodes = ["--out", str(out / self.name), "--pairs", str(self.sides)]
        nodes += ["--gpus-per-engine", str(self.gpus)]
        together = ["--cluster", "auto", "--side-by-side", str(self.sides), "--repeats", str(self.repeats)]
        return [sys.executable, "-m", "scripts.ray_nodes", *nodes, *self.bench, "online", *config, *together]


class Gpus:
    """The GPUs of this machine, each with an equal part of its cores."""

    def __init__(self, names: Sequence[str]) -> None:
        self._free = list(names)
        self._changed = threading.Condition()
        cores = physical_cores()
        each = len(cores) // len(names)
        self._cpus = {
            name: [cpu for core in cores[at * each : (at + 1) * each] for cpu in core]
            for at, name in enumerate(names)
        }

    def take(self, count: int) -> list[str]:
        """Take `count` GPUs once they are free."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def give(self, names: Sequence[str]) -> None:
        """Give GPUs back."""
        with self._changed:
            self._free = [name for name in self._cpus if name in self._free or name in names]
            self._changed.notify_all()

    def cpus(self, names: Sequence[str]) -> str:
        """The CPUs of those GPUs, as taskset takes them."""
        return ",".join(str(cpu) for name in names for cpu in self._cpus[name])


class Commands:
    """Commands that run, each in a session of its own: a Ctrl-C reaches them once, wherever it came from."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._interrupted = False
        self._lock = threading.Lock()

    def status(self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> int:
        """Run a command. Returns its exit status; 130 where it was not started any more."""
        with self._lock:
            if self._interrupted:
                return 130
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.append(process)
        return process.wait()

    def interrupt(self) -> None:
        """Send SIGINT to all that run, and start no other."""
        with self._lock:
            self._interrupted = True
            for process in self._running:
                process.send_signal(signal.SIGINT)


COMMANDS = Commands()


def main() -> None:
    """Exit with 1 where a run fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where runs and logs go")
    parser.add_argument("--sides", type=positive, default=1, help="repeats of an online run at a time")
    configured = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    parser.add_argument("names", nargs="+", metavar="NAME", choices=configured, help="of configs/published")
    parser.add_argument(
        "--profile", action="append", default=[], metavar="NAME", help="profile that run, too"
    )
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen, options = parser.parse_args(words[:end]), words[end + 1 :]
    if others := set(chosen.profile) - set(chosen.names):
        parser.error(f"--profile: {', '.join(sorted(others))} is not measured")
    if chosen.sides > 1 and any(option.partition("=")[0] == "--repeats" for option in options):
        parser.error("--repeats cannot be given with --sides: each file's are rounded up to whole sides")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    runs = [
        Run.of(
            name,
            yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()),
            chosen.sides,
            profiled=name in chosen.profile,
        )
        for name in chosen.names
    ]
    names = gpu.names(os.environ)
    most = max(run.sides * run.gpus for run in runs)
    if most > len(names):
        parser.error(f"a run needs {plural(most, 'GPU')}, and {len(names)} can be used; give fewer --sides")
    if any(run.sides == 1 for run in runs):  # else several runs would do it at a time
        subprocess.run([*BENCH, "calibrate"], check=True, stdout=subprocess.DEVNULL)
    chosen.out.mkdir(parents=True, exist_ok=True)
    gpus = Gpus(names)
    started = []
    with ThreadPoolExecutor(len(runs)) as threads:
        try:
            for run in runs:
                taken = gpus.take(run.sides * run.gpus)
                started.append((run.name, threads.submit(measured, run, chosen.out, options, gpus, taken)))
            wait([succeeded for _, succeeded in started])
        except KeyboardInterrupt:  # runs write their reports; this process ends after them
            COMMANDS.interrupt()
            sys.exit(130)
    failed = [name for name, succeeded in started if not succeeded.result()]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def measured(run: Run, out: Path, options: Sequence[str], gpus: Gpus, taken: Sequence[str]) -> bool:
    """Measure it on the `taken` GPUs, which are free afterwards. Returns whether it was measured, whatever
    becomes of its profile."""
    try:
        log = out / f"{run.name}.log"
        is_measured = succeeds(run.command(out, options), log, gpus, taken)
        if is_measured and run.profiled:
            gpus.give(taken[run.gpus :])
            taken = taken[: run.gpus]
            profile = [*run.bench, "profile", "run", str(run_of(log)), "--tool", "both"]
            if not succeeds(profile, log.with_suffix(".profile.log"), gpus, taken):
                sys.stdout.write(f"{run.name} is measured, and its profile failed\n")
        return is_measured
    finally:
        gpus.give(taken)


def run_of(log: Path) -> Path:
    """The folder of the run whose output it is: its last line names the report."""
    return Path(log.read_text(errors="replace").splitlines()[-1]).parent


def succeeds(command: Sequence[str], log: Path, gpus: Gpus, taken: Sequence[str]) -> bool:
    """Return whether a command succeeds on those GPUs and their CPUs."""
    with log.open("wb") as file:
        status = COMMANDS.status(
            ["taskset", "--cpu-list", gpus.cpus(taken), *command],
            os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(taken), "BENCH_ANYWAY": "1"},
            file,
        )
    last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    sys.stdout.write("\n".join([f"== {log.stem}", *last, ""]))
    sys.stdout.flush()
    return status == 0


if __name__ == "__main__":
    main()
