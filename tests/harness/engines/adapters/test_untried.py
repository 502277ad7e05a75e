"""Engines whose code was read and that were never run: Aphrodite 0.24.1 and mini-sglang of March 2026."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.engines.adapters import apis
from harness.engines.adapters.vllm import QUIET
from harness.engines.base import EngineSettings, Installation
from harness.engines.registry import LOCAL, get_engine_variant
from harness.engines.selfreport import SelfReport
from harness.errors import EngineError
from harness.schema.setting_types import EngineRef

APHRODITE, MINI = LOCAL["aphrodite"], LOCAL["minisgl"]
#: Options of `aphrodite serve` that matter here: aphrodite/engine/arg_utils.py, launchers/cli_args.py.
OPTIONS = frozenset(
    {
        "--served-model-name", "--host", "--port", "--dtype", "--max-model-len", "--seed", "--load-format",
        "--enable-prefix-caching", "--no-enable-prefix-caching", "--max-num-seqs", "--gpu-memory-utilization",
        "--tensor-parallel-size", "--data-parallel-size", "--enable-per-request-metrics", "--profiler-config",
    }
)  # fmt: skip
#: Variables that it reads: aphrodite/envs.py.
VARIABLES = {
    "APHRODITE_NO_USAGE_STATS", "APHRODITE_SERVER_DEV_MODE", "APHRODITE_USE_FLASHINFER_SAMPLER",
    "APHRODITE_CPU_KVCACHE_SPACE", "APHRODITE_CPU_OMP_THREADS_BIND",
}  # fmt: skip
#: Its metrics: aphrodite/v1/metrics/loggers.py.
METRICS = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
    "prefix_cache_hits_total", "prefix_cache_queries_total", "iteration_tokens_total_count",
    "iteration_tokens_total_sum", "generation_tokens_total", "request_queue_time_seconds",
    "request_prefill_time_seconds",
}  # fmt: skip
#: Arguments of mini-sglang's `LLM`: minisgl/llm/llm.py, scheduler/config.py, engine/config.py.
ARGUMENTS = {
    "model_path", "dtype", "max_running_req", "memory_ratio", "max_seq_len_override", "cache_type",
}  # fmt: skip


def _settings(name: str, model: Path, **changes: Any) -> EngineSettings:
    variant = get_engine_variant(EngineRef(name=name))
    return replace(EngineSettings(variant, model, "m", "cuda", "bf16", 1024), **changes)


def _there(name: str, distribution: str) -> Installation:
    return Installation(name, "0.24.1", distribution, Path("/v/bin/python"), "here")


def test_aphrodite_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(APHRODITE), "flags", lambda self, installation: OPTIONS)
    settings = _settings("aphrodite", tmp_path, max_running_requests=8, gpu_memory_utilization=0.5)
    there = _there("aphrodite", "aphrodite-engine")
    launch = APHRODITE.server(there, settings, 8000)
    assert launch.argv[1:4] == ("-m", "aphrodite.entrypoints.cli.main", "serve")
    assert {word for word in launch.argv if word.startswith("--")} <= OPTIONS
    offline = APHRODITE.offline(there, settings)
    own = {name for name in {**launch.env, **offline.env} if name not in {"CUDA_VISIBLE_DEVICES", *QUIET}}
    assert own and own <= VARIABLES
    assert offline.target.endswith("apis.py:Aphrodite") and issubclass(apis.Aphrodite, apis.Vllm)
    series = {*APHRODITE.server_series.values(), *APHRODITE.histograms.values(), APHRODITE.generated}
    assert {name.removeprefix("aphrodite:") for name in series} == METRICS


def test_aphrodites_settings_are_found_by_its_names():
    page = {"aphrodite_config": {"model_config": {"dtype": "torch.bfloat16", "max_model_len": 1024}}}
    facts = APHRODITE.facts(SelfReport("", {"/server_info?config_format=json": json.dumps(page)}))
    assert {key: fact.value for key, fact in facts.items()} == {
        "dtype": "bfloat16",
        "context": 1024,
        "quantization": "none",
    }
    assert APHRODITE.drafts == "aphrodite:spec_decode"


def test_mini_sglang_takes_a_batch_in_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there = _there("minisgl", "minisgl")
    with pytest.raises(EngineError, match="counts no tokens"):
        MINI.command(there, _settings("minisgl", tmp_path), 8000)
    with pytest.raises(EngineError, match="NVIDIA GPUs only"):
        MINI.check_offline(_settings("minisgl", tmp_path, device="cpu"))
    settings = _settings("minisgl", tmp_path, max_running_requests=8, gpu_memory_utilization=0.5)
    arguments: Any = MINI.offline(there, settings).arguments
    assert arguments.keys() <= ARGUMENTS
    assert (arguments["max_running_req"], arguments["memory_ratio"]) == (8, 0.5)
    assert arguments["cache_type"] == "naive"

    made = SimpleNamespace(
        generate=lambda prompts, sampling: [
            {"token_ids": prompt * params.max_tokens}
            for prompt, params in zip(prompts, sampling, strict=True)
        ]
    )
    contents: dict[str, dict[str, Any]] = {
        "llm": {"LLM": lambda **given: made},
        "core": {"SamplingParams": SimpleNamespace},
    }
    for name, content in contents.items():
        module = ModuleType(f"minisgl.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, f"minisgl.{name}", module)
    monkeypatch.setitem(sys.modules, "minisgl", ModuleType("minisgl"))
    assert apis.Minisgl(**arguments).generate([[5], [7]], [1, 2], True) == [[5], [7, 7]]
