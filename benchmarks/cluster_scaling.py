"""How much load several hosts send that one cannot.

    python -m benchmarks.cluster_scaling --out FOLDER       (root; Linux with a CPU controller)

Nodes of a Ray cluster on this machine send to the mock server. So that more of them fit on it than it has
cores, each client process gets a small share of a core by the kernel's CPU controller; its ceiling is
calibrated under that. For each number of clients: the load that they should send validly (`--share` of their
ceilings), what came of it, and how many requests were each sent once, by the table of requests and by the
log of the server, which has as many answers of that length.

    python -m benchmarks.cluster_scaling --out FOLDER --clients 100 --nodes 10 --share 0.045
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
from ray.cluster_utils import Cluster

PERIOD_US = 10_000
CLIENT = "harness.loadgen.client_main"
CONTROLLER = Path("/sys/fs/cgroup/cpu")
UNIFIED = Path("/sys/fs/cgroup")
#: Of an answer; those to questions what the server can do have 4.
TOKENS = 5
HEADS = ("clients", "nodes", "asked/s", "sent/s", "× one", "lag p99 ms", "sent once")
WIDTHS = (7, 5, 8, 8, 6, 10, 13)


class Quota:
    """Gives each client process that starts a group of its own, with a share of a core."""

    def __init__(self, share: float) -> None:
        self._share, self._known = share, set[int]()
        self._end = threading.Event()
        self._version2 = (UNIFIED / "cgroup.controllers").exists()
        self._root = (UNIFIED if self._version2 else CONTROLLER) / f"rosebench-{os.getpid()}"

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._root.mkdir()
        if self._version2:
            (self._root / "cgroup.subtree_control").write_text("+cpu")
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            yield
        finally:
            self._end.set()
            watcher.join()
            for folder in [*self._root.glob("*/"), self._root]:
                with suppress(OSError):
                    folder.rmdir()

    def _watch(self) -> None:
        young: dict[int, float] = {}
        while not self._end.wait(0.02):
            for pid in {
                int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()
            } - self._known:
                with suppress(OSError):
                    if CLIENT.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        self._limit(pid)
                        self._known.add(pid)
                    elif (
                        time.monotonic() - young.setdefault(pid, time.monotonic()) > 1
                    ):  # it is another program
                        self._known.add(pid)

    def _limit(self, pid: int) -> None:
        group, quota = self._root / str(pid), int(self._share * PERIOD_US)
        group.mkdir()
        if self._version2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cgroup.procs").write_text(str(pid))


def measured(url: str, rate: float, seconds: float, clients: int, nodes: int, out: Path) -> Any:
    """The summary of a run at that rate, the ceiling it was judged by, and its table of requests."""
    from harness.runs.online import run_online
    from harness.schema.online_settings import OnlineSettings

    settings = OnlineSettings.model_validate(
        {
            "cluster": "auto", "load_nodes": nodes, "clients": clients, "base_url": url, "model": "auto",
            "tokenizer": "none", "max_model_len": 1024, "request_rate": [rate],
            "n": max(20, round(rate * seconds)), "input_len": 16, "output_len": TOKENS,
            "warmup": 0, "check_answers": False, "out": out,
        }
    )  # fmt: skip
    folder, results = run_online(settings, ["bench"], lambda event: None)
    ceiling = min(
        host.calibration.ceiling(1).requests_per_s for host in results.meta.hosts if host.calibration
    )
    return results.summaries[0], ceiling, pd.read_parquet(folder / "requests.parquet")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--core", type=float, default=0.1, help="share of a core that a client gets")
    parser.add_argument("--share", type=float, default=0.45, help="of their ceilings that is asked for")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 10])
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a load")
    parser.add_argument("--alone", action="store_true", help="also the last load by one client")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.log = options.out / "server.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"BENCH_CACHE": cache, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "harness.mock_server",
                "--ttft-ms",
                "1000",
                "--itl-ms",
                "5",
                "--log",
                str(options.log),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        cluster = Cluster()
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().split()[1]}"
            for _ in range(options.nodes):
                cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False)
            os.environ["RAY_ADDRESS"] = cluster.address
            with Quota(options.core)():
                table(url, options)
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]
            server.kill()
            server.wait()


def table(url: str, options: argparse.Namespace) -> None:
    """A row for each number of clients."""
    _, ceiling, _ = measured(url, 2.0, 5.0, 1, 1, options.out)
    say(f"one client with {options.core:g} of a core can do {ceiling:,.0f} requests/s")
    line(HEADS, "valid")
    rate = 0.0
    for clients in options.clients:
        rate = options.share * clients * ceiling
        row(url, rate, clients, min(clients, options.nodes), ceiling, options)
    if options.alone:
        row(url, rate, 1, 1, ceiling, options)


def row(url: str, rate: float, clients: int, nodes: int, ceiling: float, options: argparse.Namespace) -> None:
    """Measure and print."""
    before = answered(options.log)
    found, _, requests = measured(url, rate, options.seconds, clients, nodes, options.out)
    count, by_server = max(20, round(rate * options.seconds)), answered(options.log) - before
    once = len(requests) == count and {*requests["request"]} == {*range(count)} and by_server == count
    senders = requests["client"].nunique()
    said = f"{count:,}" if once else f"{len(requests):,}/{by_server:,}"
    lag = found.submit_lag_ms.p99 or 0.0
    cells = (clients, nodes, f"{rate:.1f}", f"{found.req_per_s:.1f}", f"{rate / ceiling:.2f}", f"{lag:.2f}")
    valid = "yes" if found.valid else f"no: {'; '.join(found.invalid_reasons)}"
    line((*cells, said), valid if senders == clients else f"{valid} ({senders} clients sent)")


def line(cells: Sequence[object], end: str) -> None:
    """Print a row of the table."""
    say("".join(f"{cell:>{width}} " for cell, width in zip(cells, WIDTHS, strict=True)) + end)


def answered(log: Path) -> int:
    """Answers of TOKENS tokens that the server has given."""
    lines = log.read_bytes().splitlines() if log.exists() else []
    return sum(sum(tokens for _, tokens in json.loads(line)["writes"]) == TOKENS for line in lines)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
