"""What an engine is started with. Every feature has its switch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "fp16", "bf16", "fp32"]
AdmissionPolicy = Literal["fifo", "pack"]
Quantization = Literal["fp8"]
KVCacheDtype = Literal["auto", "fp8"]
PrefillBackend = Literal["auto", "auto2", "sdpa", "flash-attn", "flash-attn-3", "flashinfer", "triton"]

#: Settings that count something.
_AT_LEAST_ONE = (
    "max_model_len", "block_size", "kv_tokens", "max_active_requests", "max_batch_size",
    "prefill_max_batch_size", "prefill_max_tokens", "chunked_prefill_size", "admission_lookahead", "threads",
    "tensor_parallel_size",
)  # fmt: skip


class ConfigError(Exception):
    """A setting that cannot work. The message says which, and what would."""


#: Environment variables of an engine process: how many of them share the machine, and which this is.
REPLICAS, REPLICA = "ROSEINFER_REPLICAS", "ROSEINFER_REPLICA"


def setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; the command line's options are made from these fields.

    `auto` and None are resolved when the engine starts.
    """

    model: str = setting("random:gpt2-tiny", "local folder, hub id, smollm2-135m or random:NAME")
    device: Device = setting("auto", "where to run")
    dtype: Dtype = setting("auto", "weights and cache; auto: fp16 on a GPU, bf16 on a CPU that has it")
    quantization: Quantization | None = setting(
        None, "fp8: weights and inputs of a Llama's layers in 8-bit floats; on a GPU with bf16 for the rest"
    )
    kv_cache_dtype: KVCacheDtype = setting(
        "auto", "cached keys and values; auto: as dtype, fp8: 8-bit floats (E4M3), half as many bytes"
    )
    max_model_len: int | None = setting(None, "context in tokens; the model's own if not given")
    block_size: int = setting(16, "tokens in a block of the KV cache")
    kv_tokens: int | None = setting(None, "size of the KV cache in tokens; from free memory if not given")
    max_active_requests: int = setting(256, "requests that run together, each with its part of the cache")
    max_batch_size: int | None = setting(
        None, "requests that decode in one step, in turns when more are running; all if not given"
    )
    prefill_max_batch_size: int = setting(64, "prompts in one step")
    prefill_max_tokens: int | None = setting(
        None, "prompt tokens in one step; a longer prompt is computed alone; by device if not given"
    )
    chunked_prefill_size: int | None = setting(
        None, "tokens of a prompt computed in one step, never above prefill_max_tokens; all if not given"
    )
    admission_policy: AdmissionPolicy = setting(
        "fifo", "fifo: in order of arrival; pack: later requests may go first where the first does not fit"
    )
    admission_lookahead: int = setting(
        16, "pack: requests after the first that may pass it, and how often it is passed at most"
    )
    decode_first: bool = setting(
        True, "every step decodes, prompts come along; else steps with prompts compute only prompts"
    )
    mixed_steps: bool | None = setting(
        None,
        "prompts and decoding requests share a step, else they take turns; if not given, on a GPU on for a "
        "Llama beyond 4 GB",
    )
    prefix_cache: bool = setting(False, "reuse keys and values of equal prefixes of earlier requests")
    overlap_schedule: bool | None = setting(
        None, "launch a step before the tokens of the last one are read; on for a GPU if not given"
    )
    paged_attn: bool = setting(True, "GPU: attend over the blocks where they are, else gather them")
    cuda_graph: bool = setting(True, "GPU: replay captured graphs instead of launching every kernel")
    fused_ops: bool = setting(True, "GPU: kernels that do several operators' work at once")
    pinned_staging: bool = setting(True, "GPU: kernels read a step's arrays from pinned memory, else a copy")
    decode_parts: bool = setting(
        True, "GPU, with fused_ops: batches of sizes that gain by it decode in parts side by side"
    )
    prefill_backend: PrefillBackend | None = setting(
        None,
        "attention of prompts, on a GPU Triton's if not given; auto: flashinfer, flash-attn or sdpa, auto2: "
        "flash-attn first; on a CPU, where every other is sdpa, these are the C++ kernel, or sdpa",
    )
    spin_ms: float | None = setting(
        None, "how long processes without work stay awake; 1000 with a GPU, else 0, if not given"
    )
    threads: int | None = setting(
        None,
        "CPU threads, of all processes that compute together; if not given one for each physical core, in a "
        "server one fewer",
    )
    packed_weights: bool = setting(True, "store weights in the layout of the CPU's matrix kernels")
    cpu_kernels: bool = setting(True, "use the C++ kernels on a CPU")
    cpu_linear: bool = setting(
        True, "of them, the matrix products: bf16 with packed weights on a CPU with AVX-512 and no AMX"
    )
    tensor_parallel_size: int = setting(
        1,
        "processes that share the model, each with a part of every layer and of the cache, and with a GPU of "
        "its own where there are GPUs",
    )
    rank_timeout_s: float = setting(
        30.0, "with tensor_parallel_size: how long a step waits for another process before the engine ends"
    )
    batch_invariant: bool = setting(
        False,
        "CPU, bf16: an answer is the same alone, beside others and after interruptions; prompts take longer",
    )
    warmup: bool = setting(True, "build kernels before the first request")

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.batch_invariant and self.kv_cache_dtype != "auto":
            raise ConfigError("batch_invariant needs the C++ kernels, which take --kv-cache-dtype auto alone")
        if self.spin_ms is not None and not 0 <= self.spin_ms <= 60_000:
            raise ConfigError("spin_ms must be from 0 to 60000")
        if not 1 <= self.rank_timeout_s <= 3600:
            raise ConfigError("rank_timeout_s must be from 1 to 3600")
