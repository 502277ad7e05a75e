"""Settings of published benchmarks, by name. Whatever else is given overrides them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import Any

from harness.errors import UsageError

#: What each client of InferenceX keeps in flight, in turn.
_LADDER = (4, 8, 16, 32, 64)
_INFERENCEX = "SemiAnalysis InferenceX (formerly InferenceMAX), github.com/SemiAnalysisAI/InferenceX"
_MLPERF = "MLPerf Inference 6.1, llama3.1-8b, github.com/mlcommons/inference_policies"


@dataclass(frozen=True)
class Preset:
    """Settings of one command, and where they come from. Other values are another version."""

    command: str
    source: str
    values: dict[str, Any]
    version: int = 1

    @property
    def digest(self) -> str:
        """First digits of the SHA-256 of its values, as JSON with sorted keys."""
        return sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()[:12]


def _nominal(tokens: int) -> str:
    """Lengths from 0.8 of the nominal one to that."""
    return f"uniform:{ceil(0.8 * tokens)}:{tokens}"


def _inferencex(input_len: int, output_len: int) -> Preset:
    """Ten prompts for each in flight at every level, and a warm-up of twice the highest level."""
    values = {
        "concurrency": ",".join(map(str, _LADDER)),
        "rounds": 10,
        "n": 1,
        "warmup": 2 * max(_LADDER),
        "input_len": _nominal(input_len),
        "output_len": _nominal(output_len),
        "ignore_eos": True,
    }
    return Preset("online", _INFERENCEX, values)


def _mlperf(ttft_ms: int, tpot_ms: int) -> Preset:
    """The limits hold for 99 % of the requests; a run lasts ten minutes."""
    values = {
        "slo": f"ttft_ms={ttft_ms},tpot_ms={tpot_ms}",
        "request_rate": "1,2,4,8",
        "arrivals": "poisson",
        "min_duration": 600,
    }
    return Preset("online", _MLPERF, values)


_AA = "Artificial Analysis, System Load Test, artificialanalysis.ai/methodology"

PRESETS = {
    "inferencex:8k1k": _inferencex(8192, 1024),
    "inferencex:1k1k": _inferencex(1024, 1024),
    "inferencex:1k8k": _inferencex(1024, 8192),
    "mlperf-server": _mlperf(2000, 100),
    "mlperf-interactive": _mlperf(500, 30),
    "artificial-analysis": Preset(
        "online",
        _AA,
        {
            "concurrency": "1,2,4,8,16,32,64,128,192,256",
            "input_len": 1000,
            "output_len": 1000,
            "ignore_eos": True,
            "steady_state": True,
            "min_duration": 180,
            "n": 1,
        },
    ),
    "agentperf": Preset(
        "online",
        "agentperf-local, github.com/ArtificialAnalysis/aa-agentperf-local, eight tasks, one agent at a time",
        {"dataset": "agentperf", "turns": "recorded", "concurrency": "1", "n": 8, "endpoint": "chat"},
    ),
    "vllm-dashboard": Preset(
        "online",
        "vLLM's performance benchmarks, serving_llama8B_tp1_sharegpt, github.com/vllm-project/vllm",
        {
            "dataset": "sharegpt",
            "request_rate": "1,4,16",
            "arrivals": "poisson",
            "n": 200,
            "ignore_eos": True,
        },
    ),
    "mini-sglang-offline": Preset(
        "offline",
        "mini-sglang and nano-vllm, github.com/sgl-project/mini-sglang, benchmark/offline",
        {
            "num_prompts": 256,
            "input_len": "uniform:100:1024",
            "output_len": "uniform:100:1024",
            "ignore_eos": True,
        },
    ),
}

#: Settings that say when requests are sent, each with those that only make sense beside it.
_WHEN: dict[str, set[str]] = {
    "concurrency": {"rounds"},
    "request_rate": {"arrivals"},
    "ramp": {"arrivals"},
    "rate_series": {"arrivals"},
    "scales": set(),
    "trace": set(),
}
#: Settings that say what is sent, instead of lengths.
_WHAT = {"dataset", "mixture", "trace"}


def preset_values(name: str, command: str, explicit: dict[str, Any]) -> dict[str, Any]:
    """Return what a preset sets beside explicit settings. Raises UsageError for an unknown one."""
    if name not in PRESETS:
        raise UsageError(f"--preset: there is no {name!r}", f"give one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if preset.command != command:
        raise UsageError(f"--preset {name} is one of `bench {preset.command}`", "use that command")
    left_out = set(explicit)
    if chosen := explicit.keys() & _WHEN.keys():
        kept = set[str]().union(*(_WHEN[when] for when in chosen))
        left_out |= (_WHEN.keys() | {"rounds", "arrivals"}) - kept
    if "n" in explicit:
        left_out.add("rounds")
    if "rounds" in left_out:
        left_out.add("n")  # beside rounds it is as low as can be
    if explicit.keys() & _WHAT:
        left_out |= {"input_len", "output_len"}
    return {key: value for key, value in preset.values.items() if key not in left_out}
