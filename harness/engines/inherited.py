"""Variables of the environment that the harness did not set, and that change what engines do."""

from __future__ import annotations

from collections.abc import Mapping

from harness.plain_text import holds_secret

#: Beginnings of names that libraries below several engines read.
PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "FLASHINFER_", "GLOO_", "GOMP_", "HF_", "KMP_", "MALLOC_", "MKL_",
    "NCCL_", "NVSHMEM_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_",
    "TRITON_", "UCX_",
)  # fmt: skip
NAMES = frozenset({"LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED", "PYTHONOPTIMIZE"})


def inherited(
    environment: Mapping[str, str], added: Mapping[str, str], engine_prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Select the variables of `environment` that an engine or its libraries read, sorted by name.

    Args:
        added: variables that the harness sets, which are left out, as are those that hold a key or a token.
        engine_prefixes: beginnings of names that this engine reads.
    """
    prefixes = PREFIXES + engine_prefixes
    prefixes = PREFIXES + engine_prefixes
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(prefixes) or name in NAMES) and name not in added and not holds_secret(name)
    }
