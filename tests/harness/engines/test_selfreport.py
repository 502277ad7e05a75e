"""Lines and pages of real engines, and the settings that are found in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import JsonValue

from harness.engines.registry import LOCAL
from harness.engines.selfreport import SelfReport, normalised
from harness.schema.setting_types import EngineName

# vLLM 0.32.0 on two cores.
VLLM_LOG = """\
(EngineCore pid=8501) INFO 11-21 13:31:46 [ompmultiprocessing.py:185] \tlocal_rank=0, core ids=[0]
(EngineCore pid=8501) INFO 11-21 13:31:46 [ompmultiprocessing.py:185] \treserved_cpus=[1]
(EngineCore pid=8501) INFO 11-21 13:32:05 [kv_cache_utils.py:2327] CPU KV cache size: 262,144 tokens, Maximum concurrency for 1,024 tokens per request: 256.00x
"""  # noqa: E501
VLLM_PAGE = {
    "vllm_config": {
        "model_config": {"dtype": "torch.bfloat16", "seed": 0, "max_model_len": 1024},
        "cache_config": {"block_size": 128, "cache_dtype": "auto", "enable_prefix_caching": False},
        "scheduler_config": {
            "max_num_batched_tokens": 2048, "max_num_seqs": 128, "enable_chunked_prefill": True,
            "async_scheduling": False,
        },
        "device_config": {"device": "cpu"},
        "compilation_config": {"mode": 2, "cudagraph_mode": 0, "cudagraph_capture_sizes": []},
    }
}  # fmt: skip
# SGLang 0.5.23 on two cores.
SGLANG_LOG = """\
[2026-11-21 15:02:07] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 16384, K size: 0.03 GB, V size: 0.03 GB
[2026-11-21 15:02:07] max_total_num_tokens=16384, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=4096, context_len=1024, available_cpu_mem=16.70 GB
"""  # noqa: E501
SGLANG_PAGE = {
    "dtype": "bfloat16", "kv_cache_dtype": "auto", "page_size": 1, "disable_radix_cache": True,
    "disable_overlap_schedule": False, "device": "cpu", "attention_backend": "torch_native",
    "decode_attention_backend": None, "sampling_backend": "pytorch",
    "cuda_graph_config": {"decode": {"backend": "disabled", "bs": None}},
}  # fmt: skip
ROSEINFER_PAGE = {
    "settings": {
        "device": "cpu", "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "max_model_len": 1024,
        "kv_tokens": 262144, "block_size": 16,
        "max_batch_size": 256, "prefill_max_tokens": 128, "chunked_prefill_size": None, "prefix_cache": False,
        "overlap_schedule": True, "attention": "cpu-paged", "prefill_backend": "sdpa", "cuda_graph": [],
        "threads": 2,
    }
}  # fmt: skip
TRANSFORMERS_ARGV = [
    "serve",
    "m",
    "--device",
    "cpu",
    "--dtype",
    "bfloat16",
    "--cb-block-size",
    "32",
    "--cb-num-blocks",
    "512",
]

# llama.cpp, build 11549, on two cores.
LLAMACPP_LOG = """\
0.00.001.880 I cmn  common_param: system_info: n_threads = 1 (n_threads_batch = 1) / 2 | CPU : SSE3 = 1 | AVX2 = 1 |
0.01.646.109 I llama_context: n_ctx                 = 16384
0.01.646.110 I llama_context: n_ctx_seq             = 1024
0.01.646.110 I llama_context: n_batch               = 2048
0.01.646.110 I llama_context: n_ubatch              = 512
0.01.646.112 I llama_context: flash_attn            = auto
0.01.988.504 I llama_kv_cache: size =   64.00 MiB (  1024 cells,   4 layers, 16/16 seqs), K (bf16):   32.00 MiB, V (bf16):   32.00 MiB
0.01.988.861 I resolve_fused_ops: Flash Attention enabled
"""  # noqa: E501
LLAMACPP_PAGE = {
    "default_generation_settings": {"params": {"seed": 4294967295}, "n_ctx": 1024},
    "total_slots": 16,
    "model_ftype": "BF16",
}
# TensorRT-LLM 1.1.0rc3 on one GPU, by a user's published log.
TRTLLM_LOG = """\
[12/20/2025-04:20:19] [TRT-LLM] [I] PyTorchConfig(extra_resource_managers={}, use_cuda_graph=True, cuda_graph_batch_sizes=[1, 2, 4], disable_overlap_scheduler=True, attn_backend='TRTLLM', kv_cache_dtype='auto')
[12/20/2025-04:20:19] [TRT-LLM] [I] ATTENTION RUNTIME FEATURES:  AttentionRuntimeFeatures(chunked_prefill=False, cache_reuse=True, has_speculative_draft_tokens=False, chunk_size=8192)
[12/20/2025-04:21:09] [TRT-LLM] [I] Using Sampler: TorchSampler
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[12/20/2025-04:21:10] [TRT-LLM] [I] max_seq_len=8224, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[12/20/2025-04:21:49] [TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=2, draft_len=0
[12/20/2025-04:21:49] [TRT-LLM] [I] Run generation only CUDA graph warmup for batch size=1, draft_len=0
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
[12/20/2025-04:21:52] [TRT-LLM] [I] max_seq_len=86720, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
"""  # noqa: E501

REPORTS: dict[EngineName, tuple[SelfReport, dict[str, JsonValue]]] = {
    "vllm": (
        SelfReport(VLLM_LOG, {"/server_info?config_format=json": json.dumps(VLLM_PAGE)}),
        {
            "device": "cpu", "threads": 1, "dtype": "bfloat16", "kv_dtype": "bfloat16", "kv_tokens": 262144,
            "block_size": 128, "context": 1024, "max_batch": 128, "max_batched_tokens": 2048,
            "chunked_prefill": True, "prefix_cache": False, "graphs": [], "overlap": False,
            "quantization": "none",
        },
    ),
    "sglang": (
        SelfReport(
            SGLANG_LOG, {"/server_info": json.dumps(SGLANG_PAGE)}, env={"OMP_NUM_THREADS": "1"}
        ),
        {
            "threads": 1, "device": "cpu", "dtype": "bfloat16", "kv_dtype": "bfloat16", "kv_tokens": 16384,
            "block_size": 1, "context": 1024, "max_batch": 4096, "max_batched_tokens": 4096,
            "chunked_prefill": True, "prefix_cache": False, "graphs": [], "overlap": True,
            "attention": "torch_native", "sampler": "pytorch",
        },
    ),
    "roseinfer": (
        SelfReport("", {"/server_info": json.dumps(ROSEINFER_PAGE)}),
        {
            "device": "cpu", "threads": 2, "dtype": "bfloat16", "kv_dtype": "bfloat16", "kv_tokens": 262144,
            "block_size": 16, "context": 1024, "max_batch": 256, "max_batched_tokens": 128,
            "chunked_prefill": False, "prefix_cache": False, "graphs": [], "overlap": True,
            "quantization": "none", "attention": "cpu-paged, of prompts sdpa",
        },
    ),
    "trtllm": (
        SelfReport(TRTLLM_LOG),
        {
            "kv_tokens": 86720, "block_size": 32, "context": 86720, "max_batch": 64,
            "max_batched_tokens": 8192, "chunked_prefill": False, "prefix_cache": True, "graphs": [1, 2],
            "attention": "TRTLLM", "sampler": "TorchSampler", "overlap": False,
        },
    ),
    "llamacpp": (
        SelfReport(
            LLAMACPP_LOG, {"/props": json.dumps(LLAMACPP_PAGE)}, ["--n-gpu-layers", "0", "--no-cache-prompt"]
        ),
        {
            "device": "cpu", "threads": 1, "dtype": "bfloat16", "kv_dtype": "bfloat16", "kv_tokens": 16384,
            "context": 1024, "max_batch": 16, "max_batched_tokens": 2048, "prefix_cache": False,
            "attention": "Flash Attention enabled",
        },
    ),
    "lmdeploy": (
        SelfReport("", {}, ["--dtype", "bfloat16", "--session-len", "4096", "--max-batch-size", "256"]),
        {
            "device": "cuda", "dtype": "bfloat16", "context": 4096, "max_batch": 256, "prefix_cache": False,
            "attention": "turbomind",
        },
    ),
    "transformers": (
        SelfReport("", {}, TRANSFORMERS_ARGV),
        {"device": "cpu", "dtype": "bfloat16", "block_size": 32, "kv_tokens": 16384},
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", REPORTS)
def test_settings_are_found_in_what_the_engine_says(engine: EngineName) -> None:
    reported, expected = REPORTS[engine]
    facts = LOCAL[engine].facts(reported)
    assert {key: fact.value for key, fact in facts.items()} == expected
    sources = {fact.source for fact in facts.values()}
    assert sources <= {"start-up log", "GET /server_info", "GET /props", "command line", "environment"}


def test_a_variants_options_are_those_that_count() -> None:
    """They come last, and may be written as one word."""
    argv = [*TRANSFORMERS_ARGV, "--dtype=float16", "--cb-block-size", "64"]
    facts = LOCAL["transformers"].facts(SelfReport(argv=argv))
    values = [facts[name].value for name in ("dtype", "block_size", "kv_tokens")]
    assert values == ["float16", 64, 32768]


def test_graphs_of_sglang_are_the_sizes_that_it_captured() -> None:
    page = SGLANG_PAGE | {"cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2, 4]}}}
    facts = LOCAL["sglang"].facts(SelfReport("", {"/server_info": json.dumps(page)}))
    assert facts["graphs"].value == [1, 2, 4]


def test_the_ledger_counts_the_threads_of_all_processes() -> None:
    bound = "".join(f"\tlocal_rank={rank}, core ids=[{2 * rank}, {2 * rank + 1}]\n" for rank in range(2))
    assert LOCAL["vllm"].facts(SelfReport(bound * 2))["threads"].value == 4
    page = {"/server_info": '{"tp_size": 2, "dp_size": 3}'}
    facts = LOCAL["sglang"].facts(SelfReport(env={"OMP_NUM_THREADS": "2"}, pages=page))
    values = {key: fact.value for key, fact in facts.items()}
    assert values == {"threads": 12, "tensor_parallel": 2, "data_parallel": 3}
    threads = LOCAL["transformers"].facts(SelfReport(env={"OMP_NUM_THREADS": "3"}))["threads"]
    assert (threads.value, threads.source) == (3, "environment")


@pytest.mark.parametrize("engine", LOCAL)
@pytest.mark.parametrize("page", ["", "[]", '"x"', '{"settings": 3, "vllm_config": {"cache_config": []}}'])
def test_an_engine_that_says_nothing_or_something_else_tells_no_setting(engine, page):
    pages = dict.fromkeys(LOCAL[engine].pages, page)
    assert LOCAL[engine].facts(SelfReport("Uvicorn running on http://127.0.0.1:1\n", pages)) == {}


@pytest.mark.parametrize(
    ("reported", "value"),
    [
        ("torch.float16", "float16"), ("half", "float16"), ("262,144", 262144), ("-1", -1), ("True", True),
        ("None", None), ("FLASH_ATTN", "FLASH_ATTN"), ("[1, 2]", [1, 2]), (True, True), ([], []),
        ([1, 2, 4, *range(8, 513, 8)], "67 sizes from 1 to 512"),
    ],
)  # fmt: skip
def test_all_engines_share_their_words(reported: Any, value: Any) -> None:
    assert normalised(reported) == value
    assert type(normalised(reported)) is type(value)
