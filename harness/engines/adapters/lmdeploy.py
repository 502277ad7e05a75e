"""LMDeploy: `lmdeploy serve api_server` and `lmdeploy.pipeline`, by default with its TurboMind back end.

Its completions take text alone and count tokens at the end of a stream, so prompts go to its `/generate`,
which takes token ids and streams those of each chunk. It reports no settings, and writes them into its log
only together with lines for every request: they are those of its command line. Gauges on its page of metrics
are ten seconds old, so that only counters and histograms are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from harness.engines.adapters import apis
from harness.engines.base import NO_PENALTY, EngineSettings, Installation, Launch, RequestSettings
from harness.engines.local import LocalEngine, OfflineFactory, flags
from harness.engines.prompts import Prompts
from harness.engines.selfreport import ARGV, SelfReport
from harness.errors import EngineError
from harness.schema.fairness import EngineFact
from harness.workload import PlannedRequest

QUIET = {"HF_HUB_OFFLINE": "1"}
#: What its command line asks for.
_OPTIONS = {
    "dtype": "--dtype",
    "context": "--session-len",
    "max_batch": "--max-batch-size",
    "tensor_parallel": "--tp",
    "attention": "--backend",
}
#: It then computes with its other back end, and says so in this line alone.
_FALLBACK = re.compile(r"Fallback to pytorch engine because (.*)")


def options(settings: EngineSettings) -> dict[str, JsonValue]:
    """Settings of both server and in-process API, by the names of its `TurbomindEngineConfig`.

    Raises:
        EngineError: It cannot compute with that device or dtype.
    """
    if settings.dtype == "fp32":
        raise EngineError("LMDeploy does not compute in fp32", "use --dtype bf16, or leave out lmdeploy")
    return {
        "dtype": settings.torch_dtype,
        "session_len": settings.max_model_len,
        "enable_prefix_caching": settings.caches_prefixes,
    }


@dataclass(frozen=True)
class _Generated:
    """Prompts in the fields of `/generate`."""

    prompts: Prompts

    def fields(self, request: PlannedRequest) -> dict[str, Any]:
        fields = self.prompts.fields(request)
        return {"input_ids": fields["prompt"]} if isinstance(fields["prompt"], list) else fields

    def tokens(self, request: PlannedRequest) -> int | None:
        return self.prompts.tokens(request)


class Lmdeploy(LocalEngine):
    name = "lmdeploy"
    display = "LMDeploy"
    color, marker = "#c8412f", "X"
    distributions = ("lmdeploy",)
    install = "bench engines install lmdeploy"
    needs = ("torch",)
    gpus_only = True
    env_prefixes = ("LMDEPLOY_", "TM_")
    module = "lmdeploy"
    help_arguments = ("serve", "api_server", "--help")
    parallel_options = ("--tp", "")
    #: The latter is of what the weights leave free.
    capacity_options = ("--max-batch-size", "--cache-max-entry-count")
    histograms: ClassVar[Mapping[str, str]] = {
        "queue_wait_ms": "lmdeploy:request_queue_time_seconds",
        "prefill_ms": "lmdeploy:request_prefill_time_seconds",
    }
    drafts = "lmdeploy:spec_decode"
    generated = "lmdeploy:generation_tokens_total"
    server_series: ClassVar[Mapping[str, str]] = {
        "prefix_hits": "lmdeploy:cached_tokens_total",
        "prefix_queries": "lmdeploy:prompt_tokens_total",
    }

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        arguments = [
            *self.program(installation),
            *("serve", "api_server", str(settings.model)),
            *("--model-name", settings.served_name),
            *("--server-name", settings.host, "--server-port", str(port)),
            *("--generation-config", "lmdeploy"),  # not the model's
        ]
        arguments += flags(options(settings))
        return Launch(tuple(arguments), settings.served_name, QUIET, path="/generate")

    def prompts(self, request_settings: RequestSettings) -> Prompts:
        prompts = super().prompts(request_settings)
        return _Generated(prompts) if request_settings.endpoint == "completions" else prompts

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """No penalty, and the most likely token or, where tokens are drawn, any of them: its own limit is the
        50 most likely."""
        if request_settings.is_sampled:
            return {**NO_PENALTY, "top_p": 1.0, "top_k": 0}
        return {**NO_PENALTY, "temperature": 1.0, "top_k": 1}

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        """Settings of its command line: it reports none.

        Raises:
            EngineError: It computes with another back end than it was asked for.
        """
        if fallback := _FALLBACK.search(report.log):
            raise EngineError(
                f"LMDeploy computes with PyTorch and not with TurboMind, because {fallback[1]}",
                "name that back end, lmdeploy@pytorch, or leave out lmdeploy",
            )
        facts = report.from_argv(_OPTIONS)
        if not facts:
            return {}
        cached = "--enable-prefix-caching" in report.argv
        implied = {"device": "cuda", "attention": "turbomind", "prefix_cache": cached}
        return {key: EngineFact(value=value, source=ARGV) for key, value in implied.items()} | facts

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        arguments = {"model": str(settings.model), **options(settings), **self.api_sizes(settings)}
        return OfflineFactory(f"{apis.__file__}:Lmdeploy", arguments, QUIET)
