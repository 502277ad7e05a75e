"""vLLM: `vllm serve` and `vllm.LLM`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psutil
from pydantic import JsonValue

from harness.engines.adapters import apis
from harness.engines.base import EngineSettings, Installation, Launch, RequestSettings
from harness.engines.local import CaptureRequest, EngineProfiler, LocalEngine, OfflineFactory
from harness.engines.placement import shares, thread_cpus
from harness.engines.selfreport import LOG, SelfReport, or_unquantized
from harness.engines.server_pages import Route
from harness.errors import EngineError
from harness.schema.fairness import EngineFact
from harness.schema.profile import Category, Component

SHIM = Path(__file__).parent / "shims" / "vllm_cli.py"
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
#: Adds the page with all resolved settings, and the route that empties the prefix cache.
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
_PER_REQUEST = "--enable-per-request-metrics"

_INFO = "/server_info?config_format=json"
#: Places of the ledger's settings on that page.
_PLACES = {
    "device": "vllm_config.device_config.device",
    "tensor_parallel": "vllm_config.parallel_config.tensor_parallel_size",
    "data_parallel": "vllm_config.parallel_config.data_parallel_size",
    "dtype": "vllm_config.model_config.dtype",
    "quantization": "vllm_config.model_config.quantization",
    "kv_dtype": "vllm_config.cache_config.cache_dtype",
    "kv_tokens": "vllm_config.cache_config.kv_cache_size_tokens",
    "block_size": "vllm_config.cache_config.block_size",
    "context": "vllm_config.model_config.max_model_len",
    "max_batch": "vllm_config.scheduler_config.max_num_seqs",
    "max_batched_tokens": "vllm_config.scheduler_config.max_num_batched_tokens",
    "chunked_prefill": "vllm_config.scheduler_config.enable_chunked_prefill",
    "prefix_cache": "vllm_config.cache_config.enable_prefix_caching",
    "graphs": "vllm_config.compilation_config.cudagraph_capture_sizes",
    "overlap": "vllm_config.scheduler_config.async_scheduling",
}
#: Log lines with settings that are not on the page.
_LINES = {
    "kv_tokens": r"KV cache size: ([\d,]+) tokens",
    "attention": r"Using (\w+) attention backend",
    "sampler": r"Using (\w+) for top-p & top-k sampling",
}
#: Options with settings of a server that somebody else started, where it has no such page.
_OPTIONS = {
    "tensor_parallel": "--tensor-parallel-size",
    "data_parallel": "--data-parallel-size",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "kv_dtype": "--kv-cache-dtype",
    "max_batch": "--max-num-seqs",
    "max_batched_tokens": "--max-num-batched-tokens",
}
_CORES = re.compile(r"local_rank=\d+, core ids=\[([\d, ]*)\]")


def environment(settings: EngineSettings) -> dict[str, str]:
    """Variables: offline. On a GPU, sampling by PyTorch's operators, because FlashInfer's are compiled at
    start. On a CPU an explicit KV cache (a sixteenth of memory, 1 to 16 GiB) and the CPUs that it binds its
    compute threads to, one each, those of different processes apart."""
    if settings.threads is None:
        return {**QUIET, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    gib = psutil.virtual_memory().total // 2**30 // 16
    each = shares(thread_cpus(settings.cpus, settings.threads), settings.parallelism.devices)
    return {
        **QUIET,
        "VLLM_CPU_KVCACHE_SPACE": str(min(max(gib, 1), 16)),
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, cpus)) for cpus in each),
    }


def _check_build(installation: Installation, settings: EngineSettings) -> None:
    """Raises EngineError if this build of vLLM is for another kind of device."""
    built_for = "cpu" if "cpu" in installation.distribution + installation.version else "cuda"
    if built_for != settings.device:
        raise EngineError(
            f"{installation.distribution} {installation.version} is built for {built_for}, "
            f"not for {settings.device}",
            f"use --device {built_for}, or an environment with the other build",
        )


class Vllm(LocalEngine):
    name = "vllm"
    display = "vLLM"
    color, marker = "#dd6b00", "s"
    distributions: ClassVar[tuple[str, ...]] = ("vllm", "vllm-cpu")
    install = "bench engines install vllm, or name an environment of it in BENCH_PEERS or engines.yaml"
    module = "vllm"
    help_arguments = ("serve", "--help=all")
    renamed: ClassVar[Mapping[str, tuple[str, str]]] = {"fp8_per_tensor": ("0.31", "fp8")}
    env_prefixes = ("VLLM_",)
    #: The time to the first token is from scheduling on, so it is that of prefill.
    response_times: ClassVar[Mapping[str, str]] = {
        "queue_wait_ms": "queue_time_ms",
        "prefill_ms": "time_to_first_token_ms",
    }
    histograms: ClassVar[Mapping[str, str]] = {
        "queue_wait_ms": "vllm:request_queue_time_seconds",
        "prefill_ms": "vllm:request_prefill_time_seconds",
    }
    pages = (_INFO,)
    parallel_options = ("--tensor-parallel-size", "--data-parallel-size")
    capacity_options = ("--max-num-seqs", "--gpu-memory-utilization")
    flush = Route("/reset_prefix_cache")
    drafts = "vllm:spec_decode"
    generated = "vllm:generation_tokens_total"
    version_page = ("/version", "version")
    server_series: ClassVar[Mapping[str, str]] = {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_usage": "vllm:kv_cache_usage_perc",
        "preemptions": "vllm:num_preemptions_total",
        "prefix_hits": "vllm:prefix_cache_hits_total",
        "prefix_queries": "vllm:prefix_cache_queries_total",
        "steps": "vllm:iteration_tokens_total_count",
        "step_tokens": "vllm:iteration_tokens_total_sum",
    }
    cache_hits: ClassVar[Mapping[str, str]] = {
        cache: f'vllm:prompt_tokens_cached_by_source_total{{source="{source}"}}'
        for cache, source in [
            *((source, source) for source in ("device", "host", "disk", "p2p")),
            ("elsewhere", "external_unspecified"),
        ]
    }

    step_pattern = (
        r"^execute_(?:\d+_)?context_(?:0|(?P<prefill>(?P<prompts>\d+)))\([^)]*\)"
        r"_generation_(?P<decodes>\d+)\("
    )
    trace_names: ClassVar[Mapping[Category | Component, str]] = {"scheduling": "^schedule: "}

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        _check_build(installation, settings)
        arguments = [
            *self.program(installation),
            *("serve", str(settings.model)),
            *("--served-model-name", settings.served_name),
            *("--host", settings.host, "--port", str(port)),
            *("--dtype", settings.torch_dtype),
            *("--max-model-len", str(settings.max_model_len)),
            *("--seed", str(settings.seed)),
            "--enable-prefix-caching" if settings.caches_prefixes else "--no-enable-prefix-caching",
        ]
        if not settings.has_weights:
            arguments += ["--load-format", "dummy"]
        if _PER_REQUEST in self.flags(installation):
            arguments.append(_PER_REQUEST)
        return Launch(tuple(arguments), settings.served_name, environment(settings) | DEV_MODE)

    def program(self, installation: Installation) -> list[str]:
        if installation.distribution == "vllm":
            return [str(installation.python), "-m", "vllm.entrypoints.cli.main"]
        return [str(installation.python), str(SHIM), installation.distribution]

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Counts or ids of tokens in every chunk, and no penalty."""
        return request_settings.token_fields

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        page = or_unquantized(report.from_page(_INFO, _PLACES))  # it has what a checkpoint says, too
        facts = report.from_argv(_OPTIONS) | page | report.from_log(_LINES)
        kv_dtype = facts.get("kv_dtype")
        if kv_dtype is not None and kv_dtype.value == "auto" and "dtype" in facts:
            facts["kv_dtype"] = kv_dtype.model_copy(update={"value": facts["dtype"].value})
        if cores := {*_CORES.findall(report.log)}:
            facts["threads"] = EngineFact(value=sum(len(cpus.split(",")) for cpus in cores), source=LOG)
        return facts

    def profiler(self, installation: Installation, capture: CaptureRequest) -> EngineProfiler:
        """Capture steps; its workers stop by themselves after them, and the route ends the front end's
        part."""
        config: dict[str, JsonValue] = {"profiler": "cuda"}
        if capture.tool == "torch":
            config = {
                "profiler": "torch",
                "torch_profiler_dir": str(capture.folder),
                "torch_profiler_with_stack": capture.stacks,
                "ignore_frontend": True,
            }
        arguments = ("--profiler-config", json.dumps(config | {"max_iterations": capture.steps}))
        return EngineProfiler(arguments, {}, Route("/start_profile"), Route("/stop_profile"))

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        _check_build(installation, settings)
        arguments: dict[str, JsonValue] = {
            "model": str(settings.model),
            "dtype": settings.torch_dtype,
            "max_model_len": settings.max_model_len,
            "enable_prefix_caching": settings.caches_prefixes,
            "seed": settings.seed,
            "load_format": "auto" if settings.has_weights else "dummy",
            **self.api_sizes(settings),
        }
        return OfflineFactory(f"{apis.__file__}:Vllm", arguments, environment(settings))
