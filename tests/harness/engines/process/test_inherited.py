"""Which variables of the environment a run records, and that it records no key."""

from __future__ import annotations

from harness.engines.process.engine_server import inherited


def test_what_engines_read_is_recorded_unless_it_was_set_or_is_secret() -> None:
    environment = {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "SGLANG_LOG_GC": "1",
        "VLLM_API_KEY": "abc",
        "HF_TOKEN": "hf_123",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "4",
        "LD_PRELOAD": "libjemalloc.so",
        "HOME": "/home/someone",
        "AWS_SECRET_ACCESS_KEY": "abc",
    }
    found = inherited(environment, {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}, ("VLLM_",))
    assert found == {
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": "libjemalloc.so",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
