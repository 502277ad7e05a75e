"""TensorRT-LLM without its wheel: its published command line and request model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.engines import find
from harness.engines.adapters import trtllm
from harness.engines.base import EngineSettings, Installation, RequestSettings
from harness.engines.local import CaptureRequest
from harness.engines.registry import LOCAL, get_engine_variant
from harness.errors import EngineError
from harness.schema.setting_types import EngineRef
from harness.workload import PlannedRequest

ENGINE = LOCAL["trtllm"]
THERE = Installation("trtllm", "1.2.1", "tensorrt_llm", Path("/v/bin/python"), "here")
#: Options with a value of `trtllm-serve serve`, version 1.2: tensorrt_llm/commands/serve.py.
OPTIONS = {
    "--tokenizer", "--custom_tokenizer", "--host", "--port", "--backend", "--custom_module_dirs",
    "--log_level", "--max_beam_width", "--max_batch_size", "--max_num_tokens", "--max_seq_len",
    "--tensor_parallel_size",
    "--tp_size", "--pipeline_parallel_size", "--pp_size", "--context_parallel_size", "--cp_size",
    "--moe_expert_parallel_size", "--ep_size", "--gpus_per_node", "--free_gpu_memory_fraction",
    "--kv_cache_free_gpu_memory_fraction", "--num_postprocess_workers", "--revision", "--config",
    "--extra_llm_api_options", "--reasoning_parser", "--tool_parser", "--server_role", "--chat_template",
}  # fmt: skip
#: Fields of its CompletionRequest, which forbids all others: tensorrt_llm/serve/openai_protocol.py.
FIELDS = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
    "lora_request", "use_beam_search", "top_k", "top_p_min", "min_p", "repetition_penalty", "length_penalty",
    "early_stopping", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "detokenize",
    "add_special_tokens", "response_format", "disaggregated_params",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (find, trtllm):
        monkeypatch.setattr(module, "CACHE", tmp_path / "cache")


def _settings(model: Path, ref: str = "trtllm", device: Any = "cuda") -> EngineSettings:
    engine_variant = get_engine_variant(EngineRef.model_validate(ref))
    return EngineSettings(engine_variant, model, "gpt2", device, "fp16", 1024)


@pytest.mark.parametrize(("ref", "reuse"), [("trtllm", False), ("trtllm@prefix-cache", True)])
def test_the_command_is_one_that_its_parser_takes(tmp_path: Path, ref: str, reuse: bool):
    argv = ENGINE.server(THERE, _settings(tmp_path, ref), 8000).argv
    ENGINE.prepare(_settings(tmp_path, ref))
    assert argv[:5] == ("/v/bin/python", "-m", "tensorrt_llm.commands.serve", "serve", str(tmp_path))
    given = dict(zip(argv[5::2], argv[6::2], strict=True))
    assert given.keys() <= OPTIONS
    assert (given["--port"], given["--max_seq_len"], given["--backend"]) == ("8000", "1024", "pytorch")
    options = yaml.safe_load(Path(given["--extra_llm_api_options"]).read_text())
    assert options == {"dtype": "float16", "kv_cache_config": {"enable_block_reuse": reuse}}


def test_gpt2_needs_the_other_backend(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    argv = ENGINE.server(THERE, _settings(tmp_path), 8000).argv
    assert argv[argv.index("--backend") + 1] == "tensorrt"
    assert ENGINE.offline(THERE, _settings(tmp_path)).arguments["backend"] == "tensorrt"


def test_it_is_not_for_cpus(tmp_path: Path):
    with pytest.raises(EngineError, match="NVIDIA GPUs only"):
        ENGINE.server(THERE, _settings(tmp_path, device="cpu"), 8000)
    with pytest.raises(EngineError, match="NVIDIA GPUs only"):
        ENGINE.offline(THERE, _settings(tmp_path, device="cpu"))


def test_a_request_has_only_fields_that_it_knows():
    asked = PlannedRequest(0, None, np.array([5, 6, 7], np.int32), 9)
    body = json.loads(ENGINE.encoder(RequestSettings(Path(), "gpt2"))(asked))
    assert body.keys() <= FIELDS
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([5, 6, 7], 9, True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_its_profiler_counts_steps(tmp_path: Path):
    torch = ENGINE.profiler(THERE, CaptureRequest("torch", tmp_path, 20))
    assert torch is not None
    assert torch.env == {
        "TLLM_PROFILE_START_STOP": "100-120",
        "TLLM_TORCH_PROFILE_TRACE": str(tmp_path / "trace.json"),
    }
