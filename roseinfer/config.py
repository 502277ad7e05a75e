"""The settings of an engine. Every feature has its switch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Device = Literal["auto", "cuda", "cpu"]
Dtype = Literal["auto", "fp16", "bf16", "fp32"]
AdmissionPolicy = Literal["fifo", "pack"]
Quantization = Literal["fp8"]
KVCacheDtype = Literal["auto", "fp8"]
Prefer = Literal["latency", "balanced", "first-token", "throughput"]
PrefillBackend = Literal["auto", "auto2", "sdpa", "flash-attn", "flash-attn-3", "flashinfer", "triton"]

#: CPU threads, all of which start before the first step: 100,000 took over a minute.
MOST_THREADS = 1024
#: Tokens drafted for a request in one step: drafts of some requests together make at most 64 rows.
MOST_DRAFTED = 63
#: Settings that must be at least 1.
_AT_LEAST_ONE = (
    "max_model_len", "block_size", "kv_tokens", "max_active_requests", "max_batch_size",
    "client_batch_size", "prefill_max_batch_size", "prefill_max_tokens", "chunked_prefill_size",
    "admission_lookahead", "threads", "tensor_parallel_size", "speculate_tokens",
)  # fmt: skip


#: What a setting of each type takes, and what messages call that.
_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"), int: (Integral, "a whole number"), float: (Real, "a number"),
    str: (str, "a text"), type(None): (type(None), "None"),
}  # fmt: skip


class ConfigError(Exception):
    """A setting that cannot work. The message says which, by its option, and what would."""


class RankError(Exception):
    """With `--tensor-parallel-size`: another process of the engine has ended or does not respond; the engine
    cannot go on. The message says which, and how it ended."""


#: Environment variables of an engine process: the number of data-parallel replicas on this machine, and which
#: of them it is.
REPLICAS, REPLICA = "ROSEINFER_REPLICAS", "ROSEINFER_REPLICA"


def setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def option(name: str) -> str:
    """The command line's name of a setting."""
    return f"--{name.replace('_', '-')}"


def _check(name: str, value: Any, kind: Any) -> None:
    """Raise ConfigError unless the setting `name` may be `value`; `kind`: a type, a Literal or a union."""
    choices: list[str] = []
    for each in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if get_origin(each) is Literal:
            if isinstance(value, str) and value in get_args(each):
                return
            choices += get_args(each)
        else:
            types, words = _KINDS[each]
            if isinstance(value, types) and (each is bool or not isinstance(value, bool)):
                return
            choices.append(words)
    allowed = " or ".join(part for part in (", ".join(choices[:-1]), choices[-1]) if part)
    raise ConfigError(f"{option(name)} must be {allowed}, not {value!r:.100}")


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; the command line's options are made from these fields.

    `auto` and None are resolved when the engine starts. Raises ConfigError for a value that cannot work.
    """

    model: str = setting("random:gpt2-tiny", "local folder, hub id, smollm2-135m or random:NAME")
    device: Device = setting("auto", "where to run")
    dtype: Dtype = setting("auto", "weights and cache; auto: fp16 on a GPU, bf16 on a CPU that has it")
    quantization: Quantization | None = setting(
        None, "fp8: weights and activations of a Llama's layers in FP8; on a GPU with bf16 for the rest"
    )
    kv_cache_dtype: KVCacheDtype = setting(
        "auto", "dtype of the KV cache; auto: as dtype, fp8: E4M3, half as many bytes"
    )
    max_model_len: int | None = setting(None, "context in tokens; the model's own if not given")
    block_size: int = setting(16, "tokens in a block of the KV cache")
    kv_tokens: int | None = setting(
        None, "size of the KV cache in tokens, rounded up to whole blocks; from free memory if not given"
    )
    gpu_memory_utilization: float | None = setting(
        None,
        "without --kv-tokens: share of each GPU's memory that is in use once the KV cache is there, by other "
        "processes too; if not given, the cache takes at most 0.8 of what is free after the weights",
    )
    max_active_requests: int = setting(256, "requests that run at the same time")
    max_batch_size: int | None = setting(
        None, "requests that decode in one step, in turns when more are running; all if not given"
    )
    client_batch_size: int | None = setting(
        None,
        "of them, those of one client while another has no more running; if not given 16 on a CPU, else all",
    )
    prefill_max_batch_size: int = setting(64, "prompts in one step")
    prefill_max_tokens: int | None = setting(
        None, "prompt tokens in one step; a longer prompt is computed alone; by device if not given"
    )
    chunked_prefill_size: int | None = setting(
        None, "tokens of a prompt computed in one step, never above --prefill-max-tokens; all if not given"
    )
    admission_policy: AdmissionPolicy = setting(
        "fifo", "fifo: in order of arrival; pack: later requests may go first where the first does not fit"
    )
    admission_lookahead: int = setting(
        16, "pack: requests after the first that may pass it, and how often it is passed at most"
    )
    prefer: Prefer = setting(
        "balanced",
        "what steps are composed for; latency: gaps between tokens short and even, balanced: most gaps "
        "short, first-token: prompts at once, throughput: tokens a second",
    )
    target_tpot_ms: float | None = setting(
        None, "prompts wait where a step would take longer while requests decode; no limit if not given"
    )
    target_ttft_ms: float | None = setting(
        None,
        "steps have more prompt tokens where a first token would be later, within --target-tpot-ms; no limit "
        "if not given",
    )
    decode_first: bool = setting(
        True, "prefill and decode share steps or alternate: see --mixed-steps; else prefill always goes first"
    )
    mixed_steps: bool | None = setting(
        None,
        "prefill and decode in every step, else in alternating steps, whatever --prefer says; if not given, "
        "--prefer decides for a Llama with more than 4 GB of weights on a GPU",
    )
    prefix_cache: bool = setting(True, "reuse keys and values of equal prefixes of earlier requests")
    overlap_schedule: bool | None = setting(
        None, "launch a step before the tokens of the previous one are read; on for a GPU if not given"
    )
    late_launch: bool | None = setting(
        None,
        "with --overlap-schedule: launch a step shortly before the one before it ends, so that it has the "
        "requests that came meanwhile; on for one GPU if not given",
    )
    speculate: str | None = setting(
        None,
        "draft tokens and verify them in one step, where that has paid so far; ngram: those that followed "
        "the newest ones before in a request; else by a small model of the same vocabulary, as for --model",
    )
    speculate_tokens: int = setting(7, "with --speculate: tokens drafted for a request in one step, at most")
    paged_attn: bool = setting(True, "GPU: attention reads the paged KV cache in place, else it is gathered")
    cuda_graph: bool = setting(True, "GPU: replay captured graphs instead of launching every kernel")
    fused_ops: bool = setting(True, "GPU: fused kernels")
    pinned_staging: bool = setting(True, "GPU: kernels read a step's arrays from pinned memory, else a copy")
    decode_parts: bool = setting(
        True, "GPU, with --fused-ops: decode batches that gain by it are split over parallel streams"
    )
    prefill_backend: PrefillBackend | None = setting(
        None,
        "prefill attention; on a GPU flash-attn-3 or triton if not given, auto: flashinfer, flash-attn or "
        "sdpa, auto2: flash-attn first; on a CPU these are the C++ kernel or sdpa, and all else is sdpa",
    )
    spin_ms: float | None = setting(
        None, "how long processes without work busy-wait; if not given 20 with a GPU and 8 cores, else 0"
    )
    threads: int | None = setting(
        None,
        "CPU threads, of all of the engine's processes together; if not given one for each physical core, in "
        "a server one fewer",
    )
    packed_weights: bool = setting(
        True,
        "store weights in the packed layout of the CPU's GEMM kernels; where it has none for bf16, multiply "
        "in float32",
    )
    cpu_kernels: bool = setting(True, "use the C++ kernels on a CPU")
    cpu_linear: bool = setting(True, "of them, the GEMMs: bf16 with packed weights on a CPU with AVX-512")
    prepared_decode: bool = setting(
        True, "with both, one process: decode steps of the Llama family are kernel calls prepared once"
    )
    tensor_parallel_size: int = setting(
        1,
        "processes that share the model, each with a shard of every layer and of the KV cache, and with its "
        "own GPU where there are GPUs",
    )
    rank_timeout_s: float = setting(
        30.0, "with --tensor-parallel-size: how long a step waits for another process before the engine ends"
    )
    batch_invariant: bool = setting(
        False,
        "CPU, bf16: answers do not depend on other requests or on preemptions; prefill takes longer",
    )
    warmup: bool = setting(True, "build kernels before the first request")

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(EngineConfig).items():
            _check(name, getattr(self, name), kind)
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{option(name)} must be at least 1")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ConfigError(f"--threads must be at most {MOST_THREADS}; give as many as there are cores")
        if self.batch_invariant and self.kv_cache_dtype != "auto":
            raise ConfigError(
                "--batch-invariant needs the C++ kernels, which take --kv-cache-dtype auto alone"
            )
        if self.speculate is not None and self.tensor_parallel_size > 1:
            raise ConfigError("--speculate needs --tensor-parallel-size 1")
        if self.speculate_tokens > MOST_DRAFTED:
            raise ConfigError(f"--speculate-tokens must be at most {MOST_DRAFTED}")
        if self.spin_ms is not None and not 0 <= self.spin_ms <= 60_000:
            raise ConfigError("--spin-ms must be from 0 to 60000")
        for name in ("target_tpot_ms", "target_ttft_ms"):
            if (limit := getattr(self, name)) is not None and not limit > 0:
                raise ConfigError(f"{option(name)} must be above 0")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError("--gpu-memory-utilization must be above 0 and at most 1")
        if not 1 <= self.rank_timeout_s <= 3600:
            raise ConfigError("--rank-timeout-s must be from 1 to 3600")
