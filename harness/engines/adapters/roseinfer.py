"""roseinfer: `roseinfer serve` and its offline API, run by the interpreter that has them installed."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import JsonValue

from harness import __version__
from harness.engines.base import EngineSettings, Installation, Launch, Missing, RequestSettings
from harness.engines.local import CaptureRequest, EngineProfiler, LocalEngine, OfflineFactory
from harness.engines.selfreport import SelfReport, or_unquantized, shortened, value_at
from harness.engines.server_pages import Route
from harness.paths import module_command
from harness.schema.fairness import EngineFact
from harness.schema.profile import Category, Component

_INFO = "/server_info"
_KEYS = "ROSEINFER_API_KEY"
#: Places of the ledger's settings on `GET /server_info`.
_PLACES = {
    "device": "settings.device",
    "threads": "settings.threads",
    "tensor_parallel": "settings.tensor_parallel_size",
    "data_parallel": "data_parallel_size",
    "http_processes": "http_processes",
    "dtype": "settings.dtype",
    "quantization": "settings.quantization",
    "kv_dtype": "settings.kv_cache_dtype",
    "kv_tokens": "settings.kv_tokens",
    "block_size": "settings.block_size",
    "context": "settings.max_model_len",
    "max_batch": "settings.max_batch_size",
    "max_batched_tokens": "settings.prefill_max_tokens",
    "prefix_cache": "settings.prefix_cache",
    "attention": "settings.attention",
    "overlap": "settings.overlap_schedule",
}


class Roseinfer(LocalEngine):
    name = "roseinfer"
    display = "roseinfer"
    color, marker = "#0072b2", "o"
    distributions = ("rosebench",)
    install = "pip install 'rosebench[roseinfer]'"
    module = "roseinfer"
    needs = ("torch",)
    help_arguments = ("serve", "--help")
    env_prefixes = ("ROSEINFER_",)
    batches_by_server = True
    response_times: ClassVar[Mapping[str, str]] = {
        "queue_wait_ms": "queue_wait_ms",
        "prefill_ms": "prefill_ms",
    }
    cache_options: ClassVar[Mapping[bool, str]] = {True: "--prefix-cache"}
    parallel_options = ("--tensor-parallel-size", "--data-parallel-size")
    capacity_options = ("--max-active-requests", "--gpu-memory-utilization")
    pages = (_INFO,)
    flush = Route("/flush_cache")
    drafts = "vllm:spec_decode"
    generated = "roseinfer_generation_tokens_total"
    version_page = (_INFO, "version")
    server_series: ClassVar[Mapping[str, str]] = {
        "running": "roseinfer_running",
        "waiting": "roseinfer_waiting",
        "kv_usage": "roseinfer_kv_usage",
        "preemptions": "roseinfer_preemptions_total",
        "prefix_hit_rate": "roseinfer_prefix_hit_rate",
    }

    step_pattern = r"^roseinfer\.(?:(?P<prefill>prefill_batch\.model_forward)|model\.forward\.\w+)$"
    whole_step = "roseinfer.mp.step"
    trace_names: ClassVar[Mapping[Category | Component, str]] = {
        "communication": r"^roseinfer\.ranks\.",
        "experts": r"^_(route|place|grouped)$",
        "sampling": r"^(draw|_penalize|_occurrences|_count)$",
        "matmul": r"^stream$",
        "attention": r"^(gqa_decode|_merge_splits|_gather_kv|_convolve|_rule|_advance|_solve)$",
        "tokenize": r"^roseinfer\.tokenize",
        "IPC": r"^roseinfer\.ipc\.",
        "scheduling": r"^roseinfer\.scheduler\.",
        "detokenize": r"^roseinfer\.detokenize",
    }

    def find(self) -> Installation | Missing:
        """Find the engine. In this environment it has the harness's version, whatever the metadata of a
        checkout say."""
        engine = super().find()
        if isinstance(engine, Installation) and engine.python == Path(sys.executable):
            return replace(engine, version=__version__)
        return engine

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        arguments = [
            *self.program(installation),
            *("serve", "--model", str(settings.model)),
            *("--served-model-name", settings.served_name),
            *("--host", settings.host, "--port", str(port)),
            *("--device", settings.device, "--dtype", settings.dtype),
            *("--max-model-len", str(settings.max_model_len)),
        ]
        if settings.threads is not None:
            arguments += ["--threads", str(settings.threads)]
        if settings.caches_prefixes:
            arguments.append("--prefix-cache")
        elif "--no-prefix-cache" in self.flags(installation):
            arguments.append("--no-prefix-cache")
        if not ipaddress.ip_address(settings.host).is_loopback:
            arguments.append("--insecure")  # clients on other nodes of a cluster reach it, without a key
        without_key = {_KEYS: ""} if _KEYS in os.environ else {}  # the load sends none
        return Launch(tuple(arguments), settings.served_name, without_key)

    def program(self, installation: Installation) -> list[str]:
        return module_command("roseinfer.cli", installation.python)

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        return {"return_token_ids": True, "return_metrics": True}

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        facts = or_unquantized(report.from_page(_INFO, _PLACES))
        settings = value_at(report.page(_INFO), "settings")
        if isinstance(settings, dict) and facts:
            source = facts["dtype"].source
            chunk, graphs = settings.get("chunked_prefill_size"), settings.get("cuda_graph")
            replicas, threads = facts.get("data_parallel"), settings.get("threads")
            if replicas and isinstance(replicas.value, int) and isinstance(threads, int):
                facts["threads"] = EngineFact(value=threads * replicas.value, source=source)
            facts["chunked_prefill"] = EngineFact(value=chunk is not None, source=source)
            attention, prompts = settings.get("attention"), settings.get("prefill_backend")
            if prompts and prompts != attention:
                facts["attention"] = EngineFact(value=f"{attention}, of prompts {prompts}", source=source)
            if isinstance(graphs, list):
                facts["graphs"] = EngineFact(value=shortened(graphs), source=source)
        return facts

    def profiler(self, installation: Installation, capture: CaptureRequest) -> EngineProfiler:
        if capture.tool == "nsys":
            return EngineProfiler(env={"ROSEINFER_NVTX": "1"})
        folder = str(capture.folder)
        arguments = ("--profile-dir", folder) if "--profile-dir" in self.flags(installation) else ()
        body: dict[str, JsonValue] = {
            "output_dir": folder,
            "num_steps": capture.steps,
            "with_stack": capture.stacks,
        }
        start, stop = Route("/start_profile", body), Route("/stop_profile")
        return EngineProfiler(arguments, start=start, stop=stop, settled_s=0.0)  # it answers with whole files

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        arguments: dict[str, JsonValue] = {
            "model": str(settings.model),
            "device": settings.device,
            "dtype": settings.dtype,
            "max_model_len": settings.max_model_len,
            "prefix_cache": settings.caches_prefixes,
            **self.api_sizes(settings),
        }
        if settings.threads is not None:
            arguments["threads"] = settings.threads
        return OfflineFactory("roseinfer.bench.offline:Offline", arguments)
