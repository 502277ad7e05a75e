"""What settings cost an engine: the same load with each of them in turn.

    python -m benchmarks.engine_costs counting --engines vllm,sglang   # how tokens are counted
    python -m benchmarks.engine_costs histograms                       # SGLang's --enable-metrics
    python -m benchmarks.engine_costs waiting                          # how long OpenMP's threads wait awake

A round is a closed loop of --n requests: 128 tokens in, 64 out, random weights of 16.3M parameters. All
settings take turns, each order followed by its reverse. Prints means over rounds: of `counting` and
`histograms` with the change from the first row and its 95 % interval (rounds paired, Student's t on
logarithms), of `waiting` with the range. CPU time is that of all processes of the server. Nothing else should
run on the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from benchmarks.ratio import ratio_interval
from harness.engines.base import EngineSettings, RequestSettings
from harness.engines.process.engine_server import EngineServer
from harness.engines.registry import LOCAL, get_engine_variant
from harness.loadgen.load_plan import LoadPlan, WireRequest
from harness.loadgen.run_load import run_load
from harness.models.model_folder import resolve
from harness.records.request_record import read_request
from harness.schema.engine_ref import EngineRef
from harness.workload.planned_requests import closed_loop

INPUT, OUTPUT = 128, 64
PLAIN = {"include_usage": True}
#: How tokens can be counted, by the fields of a request.
COUNTING: dict[str, dict[str, object]] = {
    "usage at the end": {"stream_options": PLAIN},
    "usage in every chunk": {"stream_options": {**PLAIN, "continuous_usage_stats": True}},
    "token ids": {"stream_options": PLAIN, "return_token_ids": True},
}
SPINS = ("0", "100", "300", "1000", "3000", "10000")


@dataclass
class Setting:
    """A row of the table. `body` are fields of requests; `args`, `env` and `threads` are the server's."""

    name: str
    body: Mapping[str, object] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    rounds: list[dict[str, float]] = field(default_factory=list)


class Subject:
    """A server that is asked in rounds."""

    def __init__(self, server: EngineServer, engine: str, model: Path, vocab: int) -> None:
        self._server, self._engine, self._model, self._vocab = server, LOCAL[engine], model, vocab
        self._seed = 0

    def round(self, setting: Setting, clients: int, n: int) -> dict[str, float]:
        """One load: latencies in ms, output tokens a second, CPU ms a token, chunks, bytes a token."""
        self._seed += 1
        wanted = RequestSettings(self._model, self._server.served_name, body={**setting.body})  # type: ignore[dict-item]
        encode = self._engine.encoder(wanted)
        planned = closed_loop(n, INPUT, OUTPUT, self._vocab, self._seed)
        wire = [WireRequest(r.index, None, encode(r)) for r in planned]
        before = self._cpu_s()
        found = run_load(LoadPlan(self._server.target, wire, concurrency=clients), start_delay_s=0.2)
        spent = self._cpu_s() - before
        records = [read_request(raw, OUTPUT) for raw in found.responses]
        if failed := [record.error for record in records if record.error]:
            raise SystemExit(f"{setting.name}: {len(failed)} requests failed, first {failed[0]}")
        sent = np.array([raw.t_sent for raw in found.responses])
        first = np.array([record.chunks[0][0] for record in records])
        last = np.array([record.chunks[-1][0] for record in records])
        return {
            "TTFT p50, ms": 1e3 * float(np.median(first - sent)),
            "TPOT p50, ms": 1e3 * float(np.median((last - first) / (OUTPUT - 1))),
            "output tok/s": n * OUTPUT / float(last.max() - sent.min()),
            "CPU ms a token": 1e3 * spent / (n * OUTPUT),
        }

    def _cpu_s(self) -> float:
        total = 0.0
        for pid in self._server.pids:
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
        return total


@contextmanager
def served(engine: str, setting: Setting, folder: Path) -> Iterator[Subject]:
    """A server of `engine` with that setting, warmed up."""
    model = resolve("random:gpt2-tiny")
    plain = get_engine_variant(EngineRef(name=engine))
    variant = plain.variant.model_copy(
        update={"args": list(setting.args), "env": dict(setting.env), "cpu_threads": setting.threads}
    )
    settings = EngineSettings(
        replace(plain, variant=variant), model.path, model.served_name, "cpu", "bf16", model.max_model_len
    )
    with LOCAL[engine].open(settings, folder / f"{engine}.log") as server:
        assert isinstance(server, EngineServer)
        subject = Subject(server, engine, model.path, model.vocab_size)
        for clients in (1, 8):
            subject.round(setting, clients, 2 * clients)
        yield subject


def counting(engines: Sequence[str], rounds: int, clients: int, n: int, folder: Path) -> None:
    """What token ids and usage in every chunk cost, and SGLang's histograms on servers of their own."""
    for engine in engines:
        settings = [Setting(name, body) for name, body in COUNTING.items()]
        with served(engine, settings[0], folder) as subject:
            for index in range(rounds):
                for setting in settings if index % 2 == 0 else reversed(settings):
                    setting.rounds.append(subject.round(setting, clients, n))
        show(f"{engine}, {clients} in flight, {rounds} rounds of {n} requests", settings, paired=True)


def histograms(rounds: int, clients: int, n: int, folder: Path) -> None:
    """SGLang with and without --enable-metrics, servers in the order A B B A."""
    without, with_them = (
        Setting("without histograms"),
        Setting("--enable-metrics", args=("--enable-metrics",)),
    )
    for setting in (without, with_them, with_them, without):
        with served("sglang", setting, folder) as subject:
            setting.rounds += [subject.round(setting, clients, n) for _ in range(rounds)]
    show(
        f"sglang, {clients} in flight, 2 servers of {rounds} rounds of {n}", [without, with_them], paired=True
    )


def waiting(rounds: int, n: int, folder: Path) -> None:
    """roseinfer on two threads with each GOMP_SPINCOUNT, and on one; alone, and beside a busy process."""
    settings = [Setting(f"{spin} turns", env={"GOMP_SPINCOUNT": spin}, threads=2) for spin in SPINS]
    settings.append(Setting("one thread", threads=1))
    loads = [(beside, clients) for beside in ("alone", "beside a busy process") for clients in (1, 8)]
    tables = {load: [replace(setting, rounds=[]) for setting in settings] for load in loads}
    for index in range(rounds):
        order = range(len(settings)) if index % 2 == 0 else reversed(range(len(settings)))
        for which in order:
            with served("roseinfer", settings[which], folder) as subject:
                for beside, clients in loads:
                    with busy_process(beside != "alone"):
                        done = subject.round(settings[which], clients, n * (1 if clients == 1 else 3))
                    tables[beside, clients][which].rounds.append(done)
    for (beside, clients), rows in tables.items():
        show(f"roseinfer, 2 threads, {clients} in flight, {beside}, {rounds} servers", rows, paired=False)


@contextmanager
def busy_process(wanted: bool) -> Iterator[None]:
    """Another process that computes without end."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def show(title: str, settings: Sequence[Setting], *, paired: bool) -> None:
    """One row a setting: means over rounds, and where `paired` the ratio to the first setting."""
    names = list(settings[0].rounds[0])
    print(f"\n{title}\n\n| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for setting in settings:
        cells = []
        for name in names:
            values = [found[name] for found in setting.rounds]
            text = f"{fmean(values):.3g}" if fmean(values) < 1000 else f"{fmean(values):,.0f}"
            if paired and setting is not settings[0]:
                base = [found[name] for found in settings[0].rounds]
                text += f" ({ratio(values, base)})"
            elif not paired and len(values) > 1:
                text += f" ({min(values):.3g} to {max(values):.3g})"
            cells.append(text)
        print(f"| {setting.name} | {' | '.join(cells)} |", flush=True)


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    """The mean change in per cent with its 95 % interval."""
    logs = [float(np.log(a / b)) for a, b in zip(values, base, strict=True)]
    low, middle, high = (100 * (end - 1) for end in ratio_interval(logs))
    return f"{middle:+.1f} %, {low:+.1f} to {high:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("counting", "histograms", "waiting"))
    parser.add_argument("--engines", default="vllm,sglang")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--n", type=int, default=32)
    given = parser.parse_args()
    with TemporaryDirectory() as scratch:
        if given.what == "counting":
            counting(given.engines.split(","), given.rounds, given.clients, given.n, Path(scratch))
        elif given.what == "histograms":
            histograms(given.rounds, given.clients, given.n, Path(scratch))
        else:
            waiting(given.rounds, given.n, Path(scratch))


if __name__ == "__main__":
    main()
