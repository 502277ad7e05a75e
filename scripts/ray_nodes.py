"""Runs a command while this machine is a Ray cluster: for each GPU a node for an engine, and one that sends.

    python -m scripts.ray_nodes --out FOLDER [--pairs 2] bench online --cluster auto …

Each node has ports and a folder of its own. Pairs have equal parts of the cores, and so have both nodes of a
pair, unless --engine-cores says how many the first one has. The first one has a GPU, or as many as
--gpus-per-engine says. CUDA_VISIBLE_DEVICES limits which GPUs they get. What `ray start` printed goes to
FOLDER/ray/NODE.log, Ray's logs too where the command fails. All nodes have ended when this ends, with
everything that the command left; other clusters of this machine go on.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import ray

from harness.cluster.node_facts import Part
from harness.cluster.ray_nodes import connected
from harness.engines.placement import physical_cores
from harness.engines.process.guard import PR_SET_CHILD_SUBREAPER, family
from harness.errors import UsageError
from harness.telemetry import gpu

#: Of a node's object store.
STORE_BYTES = 128 << 20
#: Seconds in which all nodes are there, and in which they end when asked to.
START_S, END_S = 90.0, 20.0
#: Ports that every node has, by their options.
PORTS = (
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "metrics-export-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
)


def main() -> None:
    """Exit with the command's status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where logs go")
    parser.add_argument(
        "--pairs", type=int, help="of nodes; one for each GPU where it is not given, at least 2"
    )
    parser.add_argument("--gpus-per-engine", type=positive, default=1, help="of a pair's first node")
    parser.add_argument("--engine-cores", type=positive, help="of a pair's first node, instead of half")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if not options.command:
        parser.error("give the command to run, after the options")
    if shutil.which(options.command[0]) is None:
        parser.error(f"there is no command {options.command[0]!r}")
    each, names = options.gpus_per_engine, gpu.names(os.environ)
    gpus = [names[at : at + each] for at in range(0, len(names) - each + 1, each)]
    pairs = options.pairs or max(2, len(gpus))
    try:
        with ray_nodes(pairs, gpus, options.out / "ray", options.engine_cores) as address:
            if status := ended(options.command, os.environ | {"RAY_ADDRESS": address}):
                raise SystemExit(status)
    except UsageError as error:
        parser.exit(error.exit_code, f"{error}\n")


def ended(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The command's status, once it has ended. A Ctrl-C, or SIGINT to this process, reaches the command once,
    and is waited for: an interrupted run writes its report. A second one ends this process."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        return process.wait()


def positive(text: str) -> int:
    """A number of an option, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


@contextmanager
def ray_nodes(
    pairs: int, gpus: Sequence[Sequence[str]], logs: Path, engine_cores: int | None = None
) -> Iterator[str]:
    """The address of a cluster of so many pairs of nodes; the first ones have the `gpus`.

    Raises:
        UsageError: The nodes do not start, or `engine_cores` leaves a pair no core that sends.
    """
    logs.mkdir(parents=True, exist_ok=True)
    names = [f"{kind}{pair}" for pair in range(pairs) for kind in ("engine", "load")]
    cores = cores_of_nodes(physical_cores(), pairs, engine_cores)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name,
        ExitStack() as stack,
    ):
        stack.callback(end_all)
        folder, started = Path(name), []
        head, client, *ports = free_ports(2 + len(names) * len(PORTS))
        host = "127.0.0.1"
        address = f"{host}:{head}"
        for number, node in enumerate(names):
            pair, sends = divmod(number, 2)
            owned = cores[number]
            held = [] if sends or pair >= len(gpus) else gpus[pair]
            command = [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
                *(["--head", f"--port={head}"] if number == 0 else [f"--address={address}"]),
                *(["--include-dashboard=false", f"--ray-client-server-port={client}"] if number == 0 else []),
                *(f"--node-ip-address={host}", f"--num-cpus={len(owned)}", f"--num-gpus={len(held)}"),
                *(f"--temp-dir={folder / node}", f"--object-store-memory={STORE_BYTES}"),
                *(f"--{option}={ports.pop()}" for option in PORTS),
            ]
            cpus = [cpu for core in owned for cpu in core]
            started.append(start(command, cpus, held, logs / f"{node}.log"))
        try:
            wait_for(len(names), address, started, logs)
            yield address
        except BaseException:
            for node in names:
                with suppress(OSError, shutil.Error):
                    ignored = shutil.ignore_patterns("sockets", "session_latest")
                    shutil.copytree(folder / node, logs / node, ignore=ignored, dirs_exist_ok=True)
            raise


def cores_of_nodes(
    cores: Sequence[tuple[int, ...]], pairs: int, engine_cores: int | None
) -> list[list[tuple[int, ...]]]:
    """Return the cores of each node in turn. A pair's first node has `engine_cores`, or half of the pair's.

    Raises:
        UsageError: No core would be left for the second node.
    """
    if engine_cores is None:
        return [Part(number, 2 * pairs).cores(cores) for number in range(2 * pairs)]
    parts = [Part(pair, pairs).cores(cores) for pair in range(pairs)]
    if engine_cores >= len(parts[0]):
        raise UsageError(
            f"--engine-cores {engine_cores} leaves no core that sends: a pair has {len(parts[0])}",
            f"give less than {len(parts[0])}, or fewer --pairs",
        )
    return [node for part in parts for node in (part[:engine_cores], part[engine_cores:])]


def start(
    command: Sequence[str], cpus: Sequence[int], gpus: Sequence[str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a node on those CPUs and GPUs."""
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "RAY_worker_niceness": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH")))),
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, cpus)), *command],
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def wait_for(count: int, address: str, started: Sequence[subprocess.Popen[bytes]], logs: Path) -> None:
    """Wait until so many nodes are there. Raises UsageError."""
    deadline, why = time.monotonic() + START_S, "they are too slow"
    while time.monotonic() < deadline and not any(node.poll() is not None for node in started):
        try:
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), timeout=1.0).close()
            with connected(address):
                if sum(bool(node["Alive"]) for node in ray.nodes()) == count:  # type: ignore[no-untyped-call]
                    return
        except (UsageError, OSError) as error:
            why = str(error)
        time.sleep(1.0)
    raise UsageError(f"the {count} nodes of Ray do not start: {why}", f"see {logs}")


def end_all() -> None:
    """End what this process has started, and what was left to it."""
    for ask in (psutil.Process.terminate, psutil.Process.kill):
        processes = psutil.Process().children() if ask is psutil.Process.terminate else family(os.getpid())
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                ask(process)
        deadline = time.monotonic() + END_S
        while family(os.getpid()) and time.monotonic() < deadline:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":
    main()
