"""TensorRT-LLM without its wheel: its published command line and request model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.engines.base import EngineSettings, Installation, RequestSettings
from harness.engines.local import CaptureRequest
from harness.engines.placement import Parallel
from harness.engines.registry import LOCAL, get_engine_variant
from harness.errors import EngineError
from harness.schema.setting_types import EngineRef
from harness.telemetry import gpu
from harness.workload import PlannedRequest

ENGINE = LOCAL["trtllm"]
THERE = Installation("trtllm", "1.2.1", "tensorrt_llm", Path("/v/bin/python"), "here")
#: Options of `trtllm-serve serve` with a value. Those of 1.2: tensorrt_llm/commands/serve.py; of the code
#: after it, as of November 2026: tests/unittest/api_stability/references/trtllm_serve_cli.yaml.
OPTIONS = {
    "--tokenizer", "--custom_tokenizer", "--host", "--port", "--custom_module_dirs", "--log_level",
    "--max_beam_width", "--max_batch_size", "--max_num_tokens", "--max_seq_len", "--tensor_parallel_size",
    "--tp_size", "--pipeline_parallel_size", "--pp_size", "--context_parallel_size", "--cp_size",
    "--moe_expert_parallel_size", "--ep_size", "--gpus_per_node", "--free_gpu_memory_fraction",
    "--kv_cache_free_gpu_memory_fraction", "--num_postprocess_workers", "--revision", "--config",
    "--extra_llm_api_options", "--reasoning_parser", "--tool_parser", "--server_role", "--chat_template",
    "--backend",
}  # fmt: skip
OPTIONS_BY_VERSION = {
    "1.2.1": OPTIONS,
    "1.3.0": OPTIONS
    | {
        "--agent_percentage", "--agent_types", "--disagg_cluster_uri", "--generation-config", "--hf_revision",
        "--kv_cache_dtype", "--media_io_kwargs", "--metadata_server_config_file", "--middleware",
        "--moe_cluster_parallel_size", "--cluster_size", "--num_serve_frontends",
        "--num_input_processor_workers", "--num_media_load_workers", "--otlp_traces_endpoint",
        "--post_processor_hook", "--report_addr", "--served_model_name", "--video_pruning_rate",
        "--visual_gen_args",
    },
}  # fmt: skip
#: What `--backend` may be.
BACKENDS = {"1.2.1": {"pytorch", "tensorrt", "_autodeploy"}, "1.3.0": {"pytorch", "_autodeploy"}}
#: Fields of its CompletionRequest, which forbids all others, in 1.2 and in the code after it:
#: tensorrt_llm/serve/openai_protocol.py. The latter has more.
FIELDS = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
    "lora_request", "use_beam_search", "top_k", "top_p_min", "min_p", "repetition_penalty", "length_penalty",
    "early_stopping", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "detokenize",
    "add_special_tokens", "response_format", "disaggregated_params",
}  # fmt: skip
#: Fields of its `stream_options`, in both.
STREAM_OPTIONS = {"include_usage", "continuous_usage_stats"}


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, a cache of its own, and the options of each version."""
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu, "count", lambda: 2)
    monkeypatch.setattr(
        type(ENGINE), "flags", lambda self, there: frozenset(OPTIONS_BY_VERSION[there.version])
    )


def _settings(model: Path, ref: str = "trtllm", device: Any = "cuda") -> EngineSettings:
    engine_variant = get_engine_variant(EngineRef.model_validate(ref))
    return EngineSettings(engine_variant, model, "gpt2", device, "fp16", 1024)


@pytest.mark.parametrize("version", OPTIONS_BY_VERSION)
@pytest.mark.parametrize(("ref", "reuse"), [("trtllm", False), ("trtllm@prefix-cache", True)])
def test_the_command_is_one_that_its_parser_takes(tmp_path: Path, ref: str, reuse: bool, version: str):
    settings = replace(_settings(tmp_path, ref), max_running_requests=8, parallel=Parallel(2))
    argv = ENGINE.server(replace(THERE, version=version), settings, 8000).argv
    ENGINE.prepare(_settings(tmp_path, ref))
    assert argv[:5] == ("/v/bin/python", "-m", "tensorrt_llm.commands.serve", "serve", str(tmp_path))
    given = dict(zip(argv[5::2], argv[6::2], strict=True))
    assert given.keys() <= OPTIONS_BY_VERSION[version]
    assert given.get("--backend", "pytorch") in BACKENDS[version]
    sizes = ("--port", "--max_seq_len", "--tp_size", "--max_batch_size")
    assert [given[name] for name in sizes] == ["8000", "1024", "2", "8"]
    options = yaml.safe_load(Path(given["--extra_llm_api_options"]).read_text())
    assert options == {"dtype": "float16", "kv_cache_config": {"enable_block_reuse": reuse}}


def test_gpt2_needs_the_other_backend(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    argv = ENGINE.server(THERE, _settings(tmp_path), 8000).argv
    assert argv[argv.index("--backend") + 1] == "tensorrt"
    assert ENGINE.offline(THERE, _settings(tmp_path)).arguments["backend"] == "tensorrt"
    with pytest.raises(EngineError, match=r"1\.3\.0 has no back end for GPT-2"):
        ENGINE.server(replace(THERE, version="1.3.0"), _settings(tmp_path), 8000)


def test_it_is_not_for_cpus(tmp_path: Path):
    with pytest.raises(EngineError, match="NVIDIA GPUs only"):
        ENGINE.server(THERE, _settings(tmp_path, device="cpu"), 8000)
    with pytest.raises(EngineError, match="NVIDIA GPUs only"):
        ENGINE.check_offline(_settings(tmp_path, device="cpu"))


def test_a_request_has_only_fields_that_it_knows():
    asked = PlannedRequest(0, None, np.array([5, 6, 7], np.int32), 9)
    body = json.loads(ENGINE.encoder(RequestSettings(Path(), "gpt2"))(asked))
    assert body.keys() <= FIELDS
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([5, 6, 7], 9, True)
    assert body["stream_options"] == dict.fromkeys(STREAM_OPTIONS, True)


def test_its_profiler_counts_steps(tmp_path: Path):
    torch = ENGINE.profiler(THERE, CaptureRequest("torch", tmp_path, 20))
    assert torch is not None
    assert torch.env == {
        "TLLM_PROFILE_START_STOP": "100-120",
        "TLLM_TORCH_PROFILE_TRACE": str(tmp_path / "trace.json"),
    }
