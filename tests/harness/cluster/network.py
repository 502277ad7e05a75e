"""Hosts of one machine: network namespaces, with links that are slow or cut, and clocks that differ."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster.ray_nodes import connected
from harness.engines.process import guard
from tests.harness.cluster.conftest import STORE_BYTES

HERE = Path(__file__).parent
#: Larger packets are fewer.
MTU = 16_000
#: Programs that measure on a node: they have its clock. Ray's own have the true one.
ON_THE_CLOCK = "default_worker.py harness.loadgen"


@dataclass(frozen=True)
class Skew:
    """A host's monotonic clock is `ahead` seconds ahead at `begin`, and gains `drift` seconds a second."""

    ahead: float = 0.0
    drift: float = 0.0
    begin: float = field(default_factory=time.monotonic)

    def shown(self, true: float) -> float:
        """What it shows when the true clock shows `true`."""
        return true + self.ahead + self.drift * (true - self.begin)

    def true(self, shown: Any) -> Any:
        """The inverse, of one moment or an array."""
        return (shown - self.ahead + self.drift * self.begin) / (1 + self.drift)


@dataclass
class SimulatedHost:
    """A host of its own network namespace; processes started there are ended with it."""

    name: str
    address: str
    skew: Skew
    library: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program there. Its output goes to `log`."""
        skew = self.skew
        clock = {
            "LD_PRELOAD": str(self.library),
            "SKEW": f"{skew.ahead} {skew.drift} {skew.begin}",
            "ONLY": ON_THE_CLOCK,
        }
        inside = ["nsenter", f"--net=/run/netns/{self.name}", *command]
        with log.open("ab") as file:
            process = subprocess.Popen(
                inside,
                env=os.environ | clock | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self.processes.append(process)
        return process

    @property
    def running(self) -> list[psutil.Process]:
        """All living processes in its namespace."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        return [psutil.Process(int(pid)) for pid in found.stdout.split() if psutil.pid_exists(int(pid))]

    def signal(self, number: signal.Signals) -> None:
        """Send it to all that runs there, at once."""
        for process in self.running:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Network:
    """Hosts that reach each other and this process, at addresses of one subnet."""

    def __init__(self, subnet: str, router: subprocess.Popen[bytes], hosts: Sequence[SimulatedHost]) -> None:
        self.subnet, self.hosts = subnet, hosts
        self._router = router

    @property
    def own_address(self) -> str:
        """This process's."""
        return f"{self.subnet}.1"

    def delay(self, host: SimulatedHost, leaving_ms: float, arriving_ms: float) -> None:
        """How long every packet from and to a host takes."""
        self._say(f"{host.address} {leaving_ms} {arriving_ms}")

    def cut(self, host: SimulatedHost) -> None:
        """Lose every packet from and to a host, without a word to either side."""
        self._say(f"{host.address} cut")

    def _say(self, line: str) -> None:
        assert self._router.stdin is not None
        self._router.stdin.write(line.encode() + b"\n")


@contextmanager
def network(folder: Path, skews: Sequence[Skew]) -> Iterator[Network]:
    """A host for each of `skews`. Skips the test where this user may not make them."""
    if os.geteuid() != 0 or not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("network namespaces and TUN devices need root")
    library = folder / "skewed_clock.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "skewed_clock.c", "-ldl"], check=True
    )
    mark, subnet = f"rb{os.getpid()}", f"10.213.{os.getpid() % 250 + 1}"
    hosts = [SimulatedHost(f"{mark}-{n}", f"{subnet}.{n}", skew, library) for n, skew in enumerate(skews, 2)]
    devices = {f"{mark}d{n}": f"{subnet}.{n}" for n in range(1, len(hosts) + 2)}
    with ExitStack() as stack:
        for host in hosts:
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "del", host.name)
            stack.callback(_end, host)
        command = [sys.executable, str(HERE / "router.py"), *(f"{d}={a}" for d, a in devices.items())]
        router = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        )
        stack.callback(router.kill)
        assert router.stdout is not None
        assert router.stdout.read(6) == b"ready\n"
        os.setpriority(os.PRIO_PROCESS, router.pid, -15)
        (own, address), *others = devices.items()
        _set_up([], own, address)
        for host, (device, address) in zip(hosts, others, strict=True):
            _ip("link", "set", device, "netns", host.name)
            _ip("-n", host.name, "link", "set", "lo", "up")
            _set_up(["-n", host.name], device, address)
        made = Network(subnet, router, hosts)
        made._say(f"{made.own_address} 0 0")
        for host in hosts:
            made.delay(host, 0, 0)
        yield made


def _set_up(where: Sequence[str], device: str, address: str) -> None:
    _ip(*where, "addr", "add", f"{address}/24", "dev", device)
    _ip(*where, "link", "set", device, "mtu", str(MTU), "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _end(host: SimulatedHost) -> None:
    """Kill all that runs there."""
    while left := host.running:
        host.signal(signal.SIGKILL)
        for process in host.processes:
            process.poll()
        psutil.wait_procs(left, timeout=1)
    for process in host.processes:
        process.wait()


@contextmanager
def ray_network(folder: Path, skews: Sequence[Skew]) -> Iterator[Network]:
    """Hosts with a node of Ray each, of one CPU; the head is here, without any."""
    import ray  # a quarter of a second

    with network(folder, skews) as hosts, ExitStack() as stack:
        port, log = _free_port(hosts.own_address), folder / "ray.log"
        start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
        start += [f"--object-store-memory={STORE_BYTES}"]
        head = [f"--node-ip-address={hosts.own_address}", f"--port={port}", "--num-cpus=0"]
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*start, "--head", "--include-dashboard=false", *head], stdout=file, stderr=file
            )
        stack.callback(_end_tree, process)
        _wait_until(lambda: _answers(hosts.own_address, port))
        address = f"{hosts.own_address}:{port}"
        with pytest.MonkeyPatch.context() as patch, connected(address):
            patch.setenv("RAY_ADDRESS", address)
            for count, host in enumerate(hosts.hosts, 2):
                node = [f"--address={address}", f"--node-ip-address={host.address}", "--num-cpus=1"]
                host.start([*start, *node], log, RAY_worker_niceness="0")
                # Nodes that start at once on one machine take each other's sockets.
                _wait_until(lambda count=count: len(ray.nodes()) == count)  # type: ignore[misc, no-untyped-call]
            yield hosts


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    tree = guard.family(process.pid)
    process.kill()
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    psutil.wait_procs(tree, timeout=10)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def _wait_until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "Ray does not start"
        time.sleep(0.2)
