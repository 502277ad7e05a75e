"""Measures one running server with four harnesses, one after the other, at the same load.

    BENCH_PEERS=FOLDER python -m benchmarks.cross_check --base-url URL --model NAME --tokenizer FOLDER \\
        [--endpoint chat] [--concurrency 1,4] [--rate 2] [--input-len 128] [--output-len 32] [--n 24] \\
        [--rounds 3] [--tools rosebench,vllm,…] [--fields '{"tools": […]}']

FOLDER holds a virtual environment for each of the other harnesses: vllm/, guidellm/, aiperf/. A closed loop
has four requests or more for each that is in flight. --rate is requests a second at Poisson times, drawn
once: each harness replays them as a trace, but for `vllm bench serve` on chats, which takes no trace there
and draws its own. Prints p50 and mean of TTFT and TPOT of each as a Markdown table, medians over rounds, with
the means of vLLM's own histograms meanwhile where the server has them, and how many cores the harness needed.
What each printed stays in --out. --beside keeps a part of a core busy meanwhile: what a harness that needs so
much does to a server with which it shares cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from benchmarks.cross_harnesses import TOOLS, Asked, Found, Load
from harness.engines.prometheus import histogram_means, read_samples
from harness.engines.running.address import Address

ENGINE = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
}
HEADS = ("load", "harness", "TTFT p50, mean", "TPOT p50, mean", "engine's means", "cores", "prompt")
#: Length of a turn of the process that keeps a part of a core busy.
TURN_S = 0.01


def main() -> int:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True, help="as requests name it")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the model's folder")
    parser.add_argument("--endpoint", choices=["completions", "chat"], default="completions")
    parser.add_argument("--template", type=int, default=30, help="tokens that a chat adds: SmolLM2's 30")
    parser.add_argument("--concurrency", default="1,4", help="requests in flight; empty: none")
    parser.add_argument("--rate", type=float, help="requests a second at Poisson times, after the others")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--n", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fields", type=json.loads, default={}, help="of every request, as JSON")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--beside", type=float, default=0.0, help="part of a core to keep busy")
    parser.add_argument("--out", type=Path, default=Path("outputs/cross_check"))
    options = parser.parse_args()
    peers, target = Path(os.environ["BENCH_PEERS"]), Address(options.base_url).target()
    loads = [Load(int(value), False) for value in options.concurrency.split(",") if value]
    if options.rate is not None:
        loads.append(Load(options.rate, True))
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for load in loads:
        request = Asked(
            options.base_url, options.model, options.tokenizer.resolve(), options.endpoint == "chat",
            options.template, load, options.input_len, options.output_len,
            options.n if load.open_loop else max(options.n, round(4 * load.value)), peers,
            options.fields,
        )  # fmt: skip
        results: dict[str, list[tuple[Found, Mapping[str, float]]]] = {}
        for round_number in range(options.rounds):
            for tool in options.tools.split(","):
                name = f"{options.endpoint} {load} {round_number} {tool}".replace(" ", "-")
                out = (options.out / name).resolve()
                if out.exists():  # the results of another time would be read
                    parser.error(f"{out} is there already: name another folder with --out")
                out.mkdir(parents=True)
                before = read_samples(target)
                with busy(options.beside):
                    measured = TOOLS[tool](request, out)
                reported = histogram_means(before, read_samples(target), ENGINE)
                means = {metric: mean.mean_ms for metric, mean in reported.items()}
                results.setdefault(tool, []).append((measured, means))
        for tool, rounds in results.items():
            print(row(str(load), tool, rounds), flush=True)
    return 0


def row(load: str, tool: str, rounds: list[tuple[Found, Mapping[str, float]]]) -> str:
    """Medians over rounds as a line of the table."""

    measured = [result for result, _ in rounds]
    ttft, tpot = (
        [median(times) for times in zip(*(getattr(result, name) for result in measured), strict=True)]
        for name in ("ttft", "tpot")
    )
    engine = [median(means[name] for _, means in rounds if name in means) for name in rounds[0][1]]
    cells = (
        f"{ttft[0]:.1f}, {ttft[1]:.1f}",
        f"{tpot[0]:.2f}, {tpot[1]:.2f}",
        ", ".join(f"{mean:.1f}" for mean in engine) or "unknown",
        f"{median(result.cores for result in measured):.2f}",
        f"{median(result.prompt for result in measured):.0f}",
    )
    return f"| {load} | {tool} | {' | '.join(cells)} |"


@contextlib.contextmanager
def busy(share: float) -> Iterator[None]:
    """A process that keeps so much of a core busy, in turns of 10 ms."""
    process = multiprocessing.Process(target=spin, args=(share,), daemon=True)
    if share:
        process.start()
    try:
        yield
    finally:
        if share:
            process.kill()
            process.join()


def spin(share: float) -> None:
    """Compute for `share` of every turn, sleep for the rest."""
    while True:
        begin = time.perf_counter()
        while time.perf_counter() < begin + share * TURN_S:
            pass
        time.sleep((1 - share) * TURN_S)


if __name__ == "__main__":
    sys.exit(main())
