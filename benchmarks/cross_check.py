"""Measures one running server with four harnesses, one after the other, at the same load.

    BENCH_PEERS=FOLDER python -m benchmarks.cross_check --base-url URL --model NAME --tokenizer FOLDER \\
        [--endpoint chat] [--concurrency 1,4] [--rate 2] [--n 24] [--rounds 3] [--tools rosebench,vllm,…]

FOLDER holds a virtual environment for each of the other harnesses: vllm/, guidellm/, aiperf/. --rate is
requests a second at Poisson times, drawn once: each harness replays them as a trace, but for `vllm bench
serve` on chats, which takes no trace there and draws its own. Prints TTFT and TPOT p50 of each as a Markdown
table, medians over rounds, with the means of vLLM's own histograms meanwhile where the server has them. What
each printed stays in --out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.engines.prometheus import histograms, mean_between, read_samples
from harness.engines.running.address import Address
from harness.engines.text_prompts import TextPrompts
from harness.workload.prompts import PromptSource

INPUT, OUTPUT = 128, 32
ENGINE = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
LIMIT_S = 300
ARRIVALS_SEED = 1
#: Written prompts have so many different words at most.
WORDS = 30_000
#: Tokens of a block in the traces: a prompt is shorter, and shares nothing.
BLOCK = 512


@dataclass(frozen=True)
class Load:
    """A closed loop with so many requests in flight, or so many a second at Poisson times."""

    value: float
    open_loop: bool

    @property
    def warmup(self) -> int:
        return 1 if self.open_loop else int(self.value)

    def __str__(self) -> str:
        return f"{self.value:g} a second" if self.open_loop else f"{self.value:g} in flight"


@dataclass(frozen=True)
class Asked:
    """The server and the load. `template` is how many tokens a chat adds, which the others do not count."""

    url: str
    model: str
    tokenizer: Path
    chat: bool
    template: int
    load: Load
    n: int
    peers: Path

    @property
    def prompt(self) -> int:
        """Tokens of the prompt for a harness that does not count the template."""
        return INPUT - self.template if self.chat else INPUT

    def trace(self, out: Path, prompt: int, per_second: int = 1000, *, text: bool = False) -> Path:
        """A file of the load's times, the same for everybody, in Mooncake's format.

        Args:
            prompt: Tokens of each prompt.
            per_second: Units of time in a second; of 1 they have fractions.
            text: Write prompts, where a harness cannot make them.
        """
        gaps = np.random.default_rng(ARRIVALS_SEED).exponential(1 / self.load.value, self.n)
        words, source = TextPrompts(self.tokenizer), PromptSource(WORDS, ARRIVALS_SEED, "trace")
        rows: list[dict[str, Any]] = []
        for i, t in enumerate((np.cumsum(gaps) - gaps[0]).tolist()):
            row: dict[str, Any] = {"timestamp": t if per_second == 1 else round(t * per_second)}
            said = words.of(source.distinct(i, prompt).tolist())
            row |= {"text_input": said} if text else {"input_length": prompt, "hash_ids": [i]}
            rows.append(row | {"output_length": OUTPUT})
        path = out / "trace.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path


@dataclass(frozen=True)
class Found:
    """Medians in ms; the tokens of a prompt that the harness counts."""

    ttft: float
    tpot: float
    prompt: float


def rosebench(asked: Asked, out: Path) -> Found:
    arguments = [
        *("--base-url", asked.url, "--served-model", asked.model, "--tokenizer", str(asked.tokenizer)),
        *("--endpoint", "chat" if asked.chat else "completions"),
        *("--n", str(asked.n), "--warmup", str(asked.load.warmup)),
        *("--no-calibrate", "--no-check-answers", "--quiet", "--json"),
    ]
    if asked.load.open_loop:
        arguments += ["--trace", str(asked.trace(out, INPUT)), "--scales", "1"]
    else:
        lengths = ("--input-len", str(INPUT), "--output-len", str(OUTPUT))
        arguments += ["--concurrency", f"{asked.load.value:g}", *lengths]
    done = _run([sys.executable, "-m", "harness.cli.app", "online", *arguments, "--out", str(out)], out, {})
    [pooled] = [summary for summary in json.loads(done)["summaries"] if summary["repeat"] is None]
    prompt = pooled["prompt_tokens"] / pooled["num_success"]
    return Found(pooled["ttft_ms"]["p50"], pooled["tpot_ms"]["p50"], prompt)


def vllm(asked: Asked, out: Path) -> Found:
    python = asked.peers / "vllm" / "bin"
    program = python / "vllm_cpu_cli.py"
    command = [str(python / "python"), str(program)] if program.exists() else [str(python / "vllm")]
    command += [
        *("bench", "serve", "--backend", "openai-chat" if asked.chat else "openai"),
        *("--base-url", asked.url, "--endpoint", _path(asked), "--model", asked.model),
        *("--tokenizer", str(asked.tokenizer), "--temperature", "0"),
        *("--num-prompts", str(asked.n), "--num-warmups", str(asked.load.warmup)),
        *("--save-result", "--result-filename", str(out / "result.json")),
    ]
    if asked.load.open_loop and not asked.chat:
        trace = str(asked.trace(out, INPUT))
        command += ["--dataset-name", "timed_trace", "--dataset-path", trace]
        command += ["--timed-trace-chunk-hash-size", str(BLOCK), "--timed-trace-sec-multiplier", "0.001"]
    else:
        command += ["--dataset-name", "random", "--random-input-len", str(asked.prompt)]
        command += ["--random-output-len", str(OUTPUT), "--ignore-eos"]
        option = "--request-rate" if asked.load.open_loop else "--max-concurrency"
        command += [option, f"{asked.load.value:g}"]
    _run(command, out, OFFLINE)
    result = _json(out / "result.json")
    prompt = result["total_input_tokens"] / asked.n
    return Found(result["median_ttft_ms"], result["median_tpot_ms"], prompt)


def guidellm(asked: Asked, out: Path) -> Found:
    backend = f"kind=openai_http,target={asked.url},model={asked.model},request_format={_path(asked)}"
    if asked.load.open_loop:
        source = {"kind": "json_file", "path": str(asked.trace(out, asked.prompt, per_second=1))}
        profile, data = "kind=replay", json.dumps({"kind": "trace_synthetic", "source": source})
    else:
        profile = f"kind=concurrent,streams={asked.load.value:g}"
        data = f"kind=synthetic_text,prompt_tokens={asked.prompt},output_tokens={OUTPUT}"
    command = [
        *(str(asked.peers / "guidellm" / "bin" / "guidellm"), "run", "--backend", backend),
        *("--tokenizer", f"kind=hf_auto,model={asked.tokenizer}"),
        *("--profile", profile, "--constraint", f"kind=max_requests,count={asked.n}", "--data", data),
        *("--disable-progress", "--output", f"kind=json,path={out / 'result.json'}"),
    ]
    _run(command, out, OFFLINE)
    metrics = _json(out / "result.json")["benchmarks"][0]["metrics"]

    def p50(name: str) -> float:
        return float(metrics[name]["successful"]["percentiles"]["p50"])

    return Found(p50("time_to_first_token_ms"), p50("inter_token_latency_ms"), p50("prompt_token_count"))


def aiperf(asked: Asked, out: Path) -> Found:
    command = [
        *(str(asked.peers / "aiperf" / "bin" / "aiperf"), "profile", "--model", asked.model),
        *("--url", asked.url, "--endpoint-type", "chat" if asked.chat else "completions", "--streaming"),
        *("--tokenizer", str(asked.tokenizer), "--use-server-token-count"),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{OUTPUT}"),
        *("--warmup-request-count", str(asked.load.warmup), "--random-seed", "1", "--ui", "none"),
        *("--artifact-dir", str(out)),
    ]
    if asked.load.open_loop:
        command += ["--input-file", str(asked.trace(out, asked.prompt, text=True)), "--fixed-schedule"]
        command += ["--custom-dataset-type", "mooncake_trace"]
    else:
        command += [
            "--synthetic-input-tokens-mean",
            str(asked.prompt),
            "--synthetic-input-tokens-stddev",
            "0",
        ]
        command += ["--output-tokens-mean", str(OUTPUT), "--output-tokens-stddev", "0"]
        command += ["--concurrency", f"{asked.load.value:g}", "--request-count", str(asked.n)]
    _run(command, out, {"DO_NOT_TRACK": "1"})
    result = _json(next(out.rglob("profile_export_aiperf.json")))
    ttft, itl = result["time_to_first_token"]["p50"], result["inter_token_latency"]["p50"]
    return Found(ttft, itl, result["input_sequence_length"]["avg"])


TOOLS = {"rosebench": rosebench, "vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}


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
    parser.add_argument("--n", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--out", type=Path, default=Path("outputs/cross_check"))
    options = parser.parse_args()
    peers, target = Path(os.environ["BENCH_PEERS"]), Address(options.base_url).target()
    loads = [Load(int(value), False) for value in options.concurrency.split(",") if value]
    if options.rate is not None:
        loads.append(Load(options.rate, True))
    heads = ("load", "harness", "TTFT p50", "TPOT p50", "engine's mean TTFT, TPOT", "prompt")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for load in loads:
        asked = Asked(
            options.base_url, options.model, options.tokenizer.resolve(), options.endpoint == "chat",
            options.template, load, options.n, peers,
        )  # fmt: skip
        found: dict[str, list[tuple[Found, Mapping[str, float]]]] = {}
        for round_number in range(options.rounds):
            for tool in options.tools.split(","):
                name = f"{options.endpoint} {load} {round_number} {tool}".replace(" ", "-")
                out = (options.out / name).resolve()
                out.mkdir(parents=True, exist_ok=True)
                before = histograms(read_samples(target), ENGINE)
                measured = TOOLS[tool](asked, out)
                after = histograms(read_samples(target), ENGINE)
                means = {name: mean.mean_ms for name, mean in mean_between(before, after).items()}
                found.setdefault(tool, []).append((measured, means))
        for tool, rounds in found.items():
            ttft, tpot, prompt = (
                median(getattr(measured, name) for measured, _ in rounds)
                for name in ("ttft", "tpot", "prompt")
            )
            engine = [median(means[name] for _, means in rounds if name in means) for name in rounds[0][1]]
            said = ", ".join(f"{mean:.1f}" for mean in engine) or "unknown"
            print(f"| {load} | {tool} | {ttft:.1f} | {tpot:.2f} | {said} | {prompt:.0f} |", flush=True)
    return 0


def _path(asked: Asked) -> str:
    return "/v1/chat/completions" if asked.chat else "/v1/completions"


def _run(command: list[str], out: Path, env: Mapping[str, str]) -> str:
    """Its standard output. Raises SystemExit where it fails."""
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    (out / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: see {out / 'output.txt'}")
    return done.stdout


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
