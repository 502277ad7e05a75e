"""SGLang: `sglang serve`, in earlier versions `sglang.launch_server`, and `sglang.Engine`.

A chunk has one token or several; the usage in it says how many. It reports its own times as histograms
only."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from math import isfinite, prod
from pathlib import Path
from typing import ClassVar

from pydantic import JsonValue

from harness.engines.adapters import apis
from harness.engines.base import EngineSettings, Installation, Launch, RequestSettings
from harness.engines.local import CaptureRequest, EngineProfiler, LocalEngine, OfflineFactory, flags
from harness.engines.placement import shares, thread_cpus
from harness.engines.prometheus import METRICS, Samples, rise, series_values
from harness.engines.selfreport import LOG, OMP_THREADS, SelfReport
from harness.engines.server_pages import Route
from harness.schema.fairness import EngineFact
from harness.schema.results import SpeculationCount

SHIM = Path(__file__).parent / "shims" / "sglang_cli.py"
#: From this version on the other way to start its server warns.
SERVES_SINCE = "0.5.23"
#: Offline, and /health answers at once instead of generating a token each time, which takes a second.
QUIET = {"HF_HUB_OFFLINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}


def environment(settings: EngineSettings) -> dict[str, str]:
    """Variables: offline, and on a CPU a number of threads. By default it uses every core, and its processes
    then wait for each other. Of several processes that compute each is bound to cores of its own: without
    that it starts no more of them than there are NUMA nodes."""
    if settings.threads is None:
        return QUIET
    processes = settings.parallelism.devices
    threads = {**QUIET, OMP_THREADS: str(max(1, settings.threads // processes))}
    if processes == 1:
        return threads
    bound = shares(thread_cpus(settings.cpus, settings.threads), processes)
    return {**threads, "SGLANG_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, cpus)) for cpus in bound)}


def options(settings: EngineSettings) -> dict[str, JsonValue]:
    """Settings of both server and in-process API, by the names of `sglang.Engine`.

    On a CPU attention is PyTorch's, because SGLang's kernels need AMX and are not published. On a GPU
    sampling is PyTorch's, because FlashInfer's sampler is compiled at first use; greedily both take the
    largest logit."""
    common: dict[str, JsonValue] = {
        "device": settings.device,
        "dtype": settings.torch_dtype,
        "context_length": settings.max_model_len,
        "random_seed": settings.seed,
        "disable_radix_cache": not settings.caches_prefixes,
    }
    if not settings.has_weights:
        common["load_format"] = "dummy"
    if settings.device == "cuda":
        return {**common, "sampling_backend": "pytorch"}
    return {
        **common,
        "attention_backend": "torch_native",
        "max_total_tokens": settings.full_contexts * settings.max_model_len,
    }


#: The page of its resolved arguments.
_INFO = "/server_info"
_PLACES = {
    "device": "device",
    "tensor_parallel": "tp_size",
    "data_parallel": "dp_size",
    "dtype": "dtype",
    "quantization": "quantization",
    "context": "context_length",
    "max_batch": "max_running_requests",
    "block_size": "page_size",
    "graphs": "cuda_graph_config.decode.bs",
    "attention": "attention_backend",
    "sampler": "sampling_backend",
}
#: Arguments that tell that something is off.
_OFF = {"prefix_cache": "disable_radix_cache", "overlap": "disable_overlap_schedule"}
#: Where the graphs of a decode step are made, or that they are not.
_GRAPHS = "cuda_graph_config.decode.backend"
#: Lines of its log that tell what came of the memory there is.
_LINES = {
    "kv_dtype": r"KV Cache is allocated\. dtype: (torch\.\w+)",
    "kv_tokens": r"max_total_num_tokens=(\d+)",
    "context": r"context_len=(\d+)",
    "max_batch": r"max_running_requests=(\d+)",
    "max_batched_tokens": r"chunked_prefill_size=(\d+)",
}
_VERIFIED, _GENERATED = "sglang:spec_verify_calls_total", "sglang:generation_tokens_total"
_LATEST_SHARE = "sglang:spec_accept_rate"
_NO_CHUNKS = r"max_prefill_tokens=(\d+)"


class Sglang(LocalEngine):
    name = "sglang"
    display = "SGLang"
    color, marker = "#009e73", "^"
    distributions = ("sglang",)
    install = "bench engines install sglang"
    needs = ("torch",)
    env_prefixes = ("SGLANG_", "SGL_")
    module = "sglang.srt.entrypoints.http_server"
    pages = (_INFO,)
    parallel_options = ("--tp-size", "--dp-size")
    capacity_options = ("--max-running-requests", "--mem-fraction-static")
    offline_replicas = True
    histograms: ClassVar[Mapping[str, str]] = {
        "queue_wait_ms": "sglang:queue_time_seconds",
        "prefill_ms": 'sglang:per_stage_req_latency_seconds{stage="prefill_forward"}',
    }
    #: With `--enable-metrics` only.
    generated = "sglang:generation_tokens_total"
    version_page = (_INFO, "version")
    server_series: ClassVar[Mapping[str, str]] = {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "kv_usage": "sglang:token_usage",
        "preemptions": "sglang:num_retracted_requests_total",
        "prefix_hits": "sglang:cached_tokens_total",
        "prefix_queries": "sglang:prompt_tokens_total",
        "prefix_hit_rate": "sglang:cache_hit_rate",
    }
    cache_hits: ClassVar[Mapping[str, str]] = {
        cache: f'sglang:cached_tokens_total{{cache_source="{cache}"}}'
        for cache in ("device", "host", "storage")
    }
    flush = Route("/flush_cache")
    step_pattern = r"(?i)^step\[(?:(?P<prefill>EXTEND|MIXED|SPLIT_PREFILL)|\w+)\s+bs=(?P<requests>\d+)"

    def speculation(self, before: Samples, after: Samples) -> SpeculationCount | None:
        """Count verifications and generated tokens; only the latest accepted share is reported."""
        steps, generated = rise(_VERIFIED, before, after), rise(_GENERATED, before, after)
        if steps <= 0 or generated < 0:
            return None
        shares = [value for value in series_values(after, _LATEST_SHARE) if isfinite(value)]
        return SpeculationCount(
            steps=steps,
            tokens_per_step=generated / steps,
            accepted=sum(shares) / len(shares) if shares else None,
            source=f"GET {METRICS}: {_VERIFIED}, {_GENERATED}, {_LATEST_SHARE} (of the latest steps)",
        )

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        arguments = [
            *self.program(installation),
            *("--model-path", str(settings.model)),
            *("--served-model-name", settings.served_name),
            *("--host", settings.host, "--port", str(port)),
        ]
        if settings.engine_variant.ref.variant != "no-metrics":
            arguments.append("--enable-metrics")
        arguments += flags(options(settings))
        env = environment(settings)
        return Launch(tuple(arguments), settings.served_name, env, stop_signal=signal.SIGTERM, grace_s=5)

    def program(self, installation: Installation) -> list[str]:
        if installation.is_at_least(SERVES_SINCE):
            return [str(installation.python), str(SHIM), "serve", "--model-type", "llm"]
        return [str(installation.python), "-m", "sglang.launch_server"]

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Counts or ids of tokens in every chunk, and no penalty."""
        return request_settings.token_fields

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        facts = report.from_log(_LINES)
        if facts:
            facts["chunked_prefill"] = EngineFact(value="max_batched_tokens" in facts, source=LOG)
            facts = report.from_log({"max_batched_tokens": _NO_CHUNKS}) | facts
        facts |= report.from_env({"threads": OMP_THREADS})
        facts = report.from_page(_INFO, _PLACES) | facts
        each = facts.get("threads")
        if each is not None:  # of each of its processes that compute
            parts = (each, facts.get("tensor_parallel"), facts.get("data_parallel"))
            threads = prod(part.value for part in parts if part and isinstance(part.value, int))
            facts["threads"] = each.model_copy(update={"value": threads})
        off = report.from_page(_INFO, _OFF)
        facts |= {key: fact.model_copy(update={"value": not fact.value}) for key, fact in off.items()}
        graphs = report.from_page(_INFO, {"graphs": _GRAPHS})
        if any(fact.value == "disabled" for fact in graphs.values()):
            facts |= {key: fact.model_copy(update={"value": []}) for key, fact in graphs.items()}
        return facts

    def profiler(self, installation: Installation, capture: CaptureRequest) -> EngineProfiler:
        """Start a profile, which stops by itself after its steps; a stop route would then be an error."""
        if capture.tool == "nsys":
            return EngineProfiler()
        body: dict[str, JsonValue] = {
            "output_dir": str(capture.folder),
            "num_steps": capture.steps,
            "activities": ["CPU", "GPU"],
            "with_stack": capture.stacks,
        }
        return EngineProfiler(start=Route("/start_profile", body))

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        arguments: dict[str, JsonValue] = {
            "model_path": str(settings.model),
            **options(settings),
            **self.api_sizes(settings),
        }
        return OfflineFactory(f"{apis.__file__}:Sglang", arguments, environment(settings))
