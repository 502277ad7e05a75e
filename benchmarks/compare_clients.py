"""Measures load clients against one mock server: what each sustains, and how far off its times are.

    BENCH_PEERS=FOLDER python -m benchmarks.compare_clients [--tools rosebench,vllm,guidellm,aiperf]

FOLDER holds a virtual environment for each of the other clients: vllm/, guidellm/, aiperf/. What a client
sustains is taken from the server's own log, over the middle 80 % of what it wrote, in the same way for all;
the best of several numbers of requests in flight counts. The timing error is a client's own percentile minus
that of the same quantity in the server's log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from harness.calibration.mock_process import PROMPT_TOKENS, MockServerProcess, ask, mock_server
from harness.loadgen.load_plan import LoadPlan
from harness.loadgen.run_load import run_load
from harness.mock_server.script import ServedRequest
from harness.models.model_folder import resolve
from harness.records.request_record import read_request

OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
TTFT_MS, ITL_MS, TIMED_TOKENS, TIMED_REQUESTS = 40.0, 5.0, 64, 200
#: Of the two loads that are to be sustained: gaps of 5 ms, the first chunk after 5 ms.
FAST = ("--ttft-ms", "5", "--itl-ms", "5", "--keep-gaps")
CHUNKS_TOKENS, REQUESTS_TOKENS = 128, 8
#: Chunks that the server hands to the kernel at once, where it would be short of time before the client is.
TOGETHER = 8
TOGETHER_SERVER = ("--itl-ms", "1", "--chunks-per-write", str(TOGETHER))
#: The server has a core; the other clients, of several processes, may run where the kernel puts them.
SERVER_CPUS, CLIENT_CPUS = (0,), (1,)


@dataclass(frozen=True)
class Load:
    """Load of a client: hold `concurrency` requests in flight, each answered with `tokens` chunks."""

    requests: int
    concurrency: int
    tokens: int


@dataclass(frozen=True)
class Reported:
    """Percentiles that a client reports, in ms. `itl_per_request`: its ITL is a mean over each request."""

    ttft: tuple[float, float]
    itl: tuple[float, float]
    itl_per_request: bool


Client = Callable[[MockServerProcess, Load], Reported]


def rosebench(mock: MockServerProcess, load: Load) -> Reported:
    """Our own client, one process, on the core that the server does not have."""
    wire = [ask(index, load.tokens, {}, None) for index in range(load.requests)]
    result = run_load(LoadPlan(mock.target, wire, load.concurrency), cpus=CLIENT_CPUS)
    ttft, itl = [], []
    for response in result.responses:
        chunks = read_request(response, load.tokens).chunks
        assert response.t_sent is not None
        ttft.append((chunks[0][0] - response.t_sent) * 1e3)
        itl += [(now - before) * 1e3 for (before, _), (now, _) in pairwise(chunks)]
    return Reported(_percentiles(ttft), _percentiles(itl), itl_per_request=False)


def vllm(mock: MockServerProcess, load: Load) -> Reported:
    """`vllm bench serve`; where the environment has a launcher for machines without a GPU, through that."""
    folder = _environment("vllm")
    launcher = folder / "vllm_cpu_cli.py"
    start = [folder / "python", launcher] if launcher.exists() else [folder / "vllm"]
    tokens = load.tokens
    with tempfile.TemporaryDirectory() as out:
        _run(
            *start, "bench", "serve", "--backend", "vllm", "--base-url", _url(mock),
            "--endpoint", "/v1/completions", "--model", "mock", "--tokenizer", _tokenizer(),
            "--dataset-name", "random", "--random-input-len", PROMPT_TOKENS, "--random-output-len", tokens,
            "--num-prompts", load.requests, "--max-concurrency", load.concurrency, "--ignore-eos",
            "--temperature", 0, "--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99",
            "--disable-tqdm", "--save-result", "--result-dir", out, "--result-filename", "r.json",
        )  # fmt: skip
        result = json.loads((Path(out) / "r.json").read_text())
    return Reported(
        (result["p50_ttft_ms"], result["p99_ttft_ms"]),
        (result["p50_itl_ms"], result["p99_itl_ms"]),
        itl_per_request=False,
    )


def guidellm(mock: MockServerProcess, load: Load) -> Reported:
    """guidellm with its concurrent profile."""
    backend = f"kind=openai_http,target={_url(mock)},model=mock,request_format=/v1/completions"
    with tempfile.TemporaryDirectory() as out:
        _run(
            _environment("guidellm") / "guidellm", "run",
            "--backend", backend,
            "--tokenizer", f"kind=hf_auto,model={_tokenizer()}",
            "--profile", f"kind=concurrent,streams={load.concurrency}",
            "--constraint", f"kind=max_requests,count={load.requests}",
            "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
            "--disable-progress", "--output", f"kind=json,path={out}/r.json",
        )  # fmt: skip
        metrics = json.loads((Path(out) / "r.json").read_text())["benchmarks"][0]["metrics"]
    ttft, itl = (
        metrics[name]["successful"]["percentiles"]
        for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    return Reported((ttft["p50"], ttft["p99"]), (itl["p50"], itl["p99"]), itl_per_request=True)


def aiperf(mock: MockServerProcess, load: Load) -> Reported:
    """NVIDIA aiperf. It asks the tokenizer's folder itself and refuses to with HF_HUB_OFFLINE."""
    with tempfile.TemporaryDirectory() as out:
        _run(
            _environment("aiperf") / "aiperf", "profile", "--model", "mock", "--url", _url(mock),
            "--endpoint-type", "completions", "--streaming", "--tokenizer", _tokenizer(),
            "--use-server-token-count", "--synthetic-input-tokens-mean", PROMPT_TOKENS,
            "--synthetic-input-tokens-stddev", 0, "--output-tokens-mean", load.tokens,
            "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true",
            "--extra-inputs", f"min_tokens:{load.tokens}", "--concurrency", load.concurrency,
            "--request-count", load.requests, "--random-seed", 1, "--ui", "none", "--artifact-dir", out,
            drop=("HF_HUB_OFFLINE",),
        )  # fmt: skip
        result = json.loads((Path(out) / "profile_export_aiperf.json").read_text())
    ttft, itl = result["time_to_first_token"], result["inter_token_latency"]
    return Reported((ttft["p50"], ttft["p99"]), (itl["p50"], itl["p99"]), itl_per_request=True)


#: Each client, and how many requests in flight are tried.
CLIENTS: dict[str, tuple[Client, Sequence[int]]] = {
    "rosebench": (rosebench, (128, 512, 768)),
    "vllm": (vllm, (32, 128, 256)),
    "guidellm": (guidellm, (32, 128, 256)),
    "aiperf": (aiperf, (32, 128, 256)),
}
#: Requests one after the other in each place: what waits unread in a socket is soon a small part.
ROUNDS = 10


@dataclass(frozen=True)
class Row:
    """A client in the table. Rates are per second; errors are (p50, p99) in ms by requests in flight."""

    client: str
    requests_per_s: float
    chunks_per_s: float
    together_per_s: float
    ttft_error: dict[int, tuple[float, float]]
    itl_error: dict[int, tuple[float, float]]


def measure(name: str, timed: Sequence[int], *, rates: bool) -> Row:
    """Everything about one client; its rates are 0 where they are not wanted."""
    client, levels = CLIENTS[name]

    def best(tokens: int, rate: Callable[[list[ServedRequest]], float], *server: str) -> float:
        reached = [0.0]
        for concurrency in levels if rates else ():
            with mock_server(*FAST, *server, cpus=SERVER_CPUS) as mock:
                client(mock, Load(ROUNDS * concurrency, concurrency, tokens))
                reached.append(rate(_answers(mock, ROUNDS * concurrency)))
            _say(f"{name}: {concurrency} in flight, {tokens} chunks each: {reached[-1]:,.0f}/s")
        return max(reached)

    requests_per_s = best(REQUESTS_TOKENS, _request_rate)
    chunks_per_s = best(CHUNKS_TOKENS, _chunk_rate)
    together_per_s = best(CHUNKS_TOKENS, _chunk_rate, *TOGETHER_SERVER)
    ttft_error, itl_error = {}, {}
    for concurrency in timed:
        requests = min(TIMED_REQUESTS, 50 * concurrency)
        with mock_server("--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), cpus=SERVER_CPUS) as mock:
            reported = client(mock, Load(requests, concurrency, TIMED_TOKENS))
            served_requests = _answers(mock, requests)
        ttft_error[concurrency] = _difference(reported.ttft, [_ttft(served) for served in served_requests])
        gaps = [_gaps(served) for served in served_requests]
        true = (
            [float(np.mean(of_request)) for of_request in gaps]
            if reported.itl_per_request
            else [g for of_request in gaps for g in of_request]
        )
        itl_error[concurrency] = _difference(reported.itl, true)
        _say(f"{name}: {concurrency} in flight: TTFT {ttft_error[concurrency]}, ITL {itl_error[concurrency]}")
    return Row(name, requests_per_s, chunks_per_s, together_per_s, ttft_error, itl_error)


def _answers(mock: MockServerProcess, requests: int) -> list[ServedRequest]:
    """The last `requests` answers: what came before were the client's probes and warm-up."""
    good = [served for served in mock.all_served_requests() if served.outcome == "complete" and served.writes]
    return sorted(good, key=lambda served: served.t_received)[-requests:]


def _ttft(served: ServedRequest) -> float:
    return (served.writes[0][0] - served.t_received) * 1e3


def _gaps(served: ServedRequest) -> list[float]:
    return [(now - before) * 1e3 for (before, _), (now, _) in pairwise(served.writes)]


def _request_rate(served_requests: list[ServedRequest]) -> float:
    return _rate([served.t_end for served in served_requests])


def _chunk_rate(served_requests: list[ServedRequest]) -> float:
    return _rate([t for served in served_requests for t, _ in served.writes])


def _rate(times: list[float]) -> float:
    """Events a second between the first and the last tenth of them."""
    low, high = np.percentile(times, [10, 90])
    return 0.8 * len(times) / float(high - low)


def _percentiles(values: list[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return float(p50), float(p99)


def _difference(reported: tuple[float, float], true: list[float]) -> tuple[float, float]:
    p50, p99 = _percentiles(true)
    return round(reported[0] - p50, 3), round(reported[1] - p99, 3)


def _url(mock: MockServerProcess) -> str:
    return f"http://127.0.0.1:{mock.port}"


def _tokenizer() -> Path:
    return resolve("random:gpt2-tiny").path


def _environment(name: str) -> Path:
    if not os.environ.get("BENCH_PEERS"):
        sys.exit("BENCH_PEERS must name the folder that holds the other clients' environments")
    return Path(os.environ["BENCH_PEERS"]) / name / "bin"


def _run(*command: object, drop: Sequence[str] = ()) -> None:
    """Run a client to its end. Exits with its last lines when it fails."""
    env = {key: value for key, value in (os.environ | OFFLINE).items() if key not in drop}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([str(c) for c in command], env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            "\n".join([f"{command[0]} ended with code {done.returncode}", *done.stderr.splitlines()[-20:]])
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _table(rows: list[Row], timed: Sequence[int], *, rates: bool) -> str:
    head = ["client", *(("requests/s", "chunks/s", f"chunks/s, {TOGETHER} a write") if rates else ())]
    head += [f"{what} error at {c}, p50 / p99 (ms)" for c in timed for what in ("TTFT", "ITL")]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        errors = [error[c] for c in timed for error in (row.ttft_error, row.itl_error)]
        cells = [f"{p50:+.3f} / {p99:+.3f}" for p50, p99 in errors]
        measured = (row.requests_per_s, row.chunks_per_s, row.together_per_s) if rates else ()
        lines.append([row.client, *(f"{rate:,.0f}" for rate in measured), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Measure the clients one after the other, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", default=",".join(CLIENTS), help="which clients")
    parser.add_argument("--timed", default="8,32", help="requests in flight while times are compared")
    parser.add_argument("--no-rates", dest="rates", action="store_false", help="compare times alone")
    options = parser.parse_args()
    timed = [int(word) for word in options.timed.split(",")]
    rows = [measure(name, timed, rates=options.rates) for name in options.tools.split(",")]
    print(_table(rows, timed, rates=options.rates))


if __name__ == "__main__":
    main()
