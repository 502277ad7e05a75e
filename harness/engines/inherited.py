"""Variables of the environment that the harness did not set, and that change what engines do."""

from __future__ import annotations

from collections.abc import Mapping

from harness.plain_text import holds_secret

#: Beginnings of names that engines and the libraries below them read.
PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "FLASHINFER_", "GGML_", "GLOO_", "GOMP_", "HF_", "KMP_", "LLAMA_",
    "MALLOC_", "MKL_", "NCCL_", "NVSHMEM_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_",
    "ROSEINFER_", "SGLANG_", "SGL_", "TLLM_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_", "TRTLLM_",
    "UCX_", "VLLM_",
)  # fmt: skip
NAMES = frozenset({"LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED", "PYTHONOPTIMIZE"})


def inherited(environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Those of `environment` that are not in `own`, which the harness sets, by name; none that holds a key or
    a token."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(PREFIXES) or name in NAMES) and name not in own and not holds_secret(name)
    }
