"""TensorRT-LLM: `trtllm-serve` and its `LLM`, as version 1.2 and the code after it have them.

Its wheels are on the vendor's own index, and it has never been run with this harness. Command and requests
follow its argument parser (`tensorrt_llm/commands/serve.py`) and its request model
(`tensorrt_llm/serve/openai_protocol.py`). That model refuses unknown fields: token counts come from
`continuous_usage_stats`, because there is no `return_token_ids`. Its `/metrics` has statistics of iterations
instead of times, and no route reports its settings: they are read from its log, by lines that users of 1.1
and 1.2 have published."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import yaml
from pydantic import JsonValue

from harness.engines.adapters import apis
from harness.engines.base import COUNT_TOKENS, EngineSettings, Installation, Launch, RequestSettings
from harness.engines.find import engines_folder
from harness.engines.local import CaptureRequest, EngineProfiler, LocalEngine, OfflineFactory
from harness.engines.selfreport import LOG, SelfReport, shortened
from harness.errors import EngineError
from harness.files import write_whole
from harness.schema.fairness import EngineFact

QUIET = {"HF_HUB_OFFLINE": "1", "TLLM_LOG_LEVEL": "INFO"}
#: From this version on there is no TensorRT backend.
PYTORCH_ALONE_SINCE = "1.3"
#: Step after which a profile begins: graphs and autotuning are done by then.
PROFILE_AFTER_STEPS = 100


#: Log lines with a setting, of its PyTorch backend or (TRTGptModel) its TensorRT backend. The KV cache is
#: allocated twice, first for an estimate.
_LINES = {
    "kv_tokens": r"max tokens in paged KV cache \((\d+)\)",
    "block_size": r"Number of tokens per block: (\d+)",
    "context": r"(?:max_seq_len=|TRTGptModel maxSequenceLen: )(\d+)",
    "max_batch": r"(?:max_num_requests=|TRTGptModel maxBatchSize: )(\d+)",
    "max_batched_tokens": r"(?:max_num_requests=\d+, max_num_tokens=|TRTGptModel maxNumTokens: )(\d+)",
    "chunked_prefill": r"AttentionRuntimeFeatures\(chunked_prefill=(\w+)",
    "prefix_cache": r"AttentionRuntimeFeatures\(.*cache_reuse=(\w+)",
    "attention": r"attn_backend='(\w+)'",
    "sampler": r"Using Sampler: (\w+)",
}
_NO_OVERLAP = r"disable_overlap_scheduler=(\w+)"
_GRAPH = re.compile(r"generation.only CUDA graph warmup for batch size=(\d+)")


def backend(installation: Installation, model: Path) -> str:
    """Choose `tensorrt` for GPT-2, which its PyTorch backend does not support, and `pytorch`, its default,
    for the rest. Raises EngineError for GPT-2 where there is only the latter."""
    config = model / "config.json"
    kind = json.loads(config.read_text()).get("model_type") if config.exists() else None
    if kind != "gpt2":
        return "pytorch"
    if installation.is_at_least(PYTORCH_ALONE_SINCE):
        raise EngineError(
            f"TensorRT-LLM {installation.version} has no back end for GPT-2", "use another model, or 1.2"
        )
    return "tensorrt"


def options(settings: EngineSettings) -> dict[str, JsonValue]:
    """Settings without a command-line option, by the names of its `LLM`."""
    cache: dict[str, JsonValue] = {"enable_block_reuse": settings.caches_prefixes}
    if settings.gpu_memory_utilization is not None:  # of what the weights leave free
        cache["free_gpu_memory_fraction"] = settings.gpu_memory_utilization
    return {"dtype": settings.torch_dtype, "kv_cache_config": cache}


def _options_file(settings: EngineSettings) -> tuple[Path, bytes]:
    """The path of the YAML file with `options`, named by a hash of its content, and that content."""
    content = yaml.safe_dump(options(settings)).encode()
    return engines_folder() / "trtllm-options" / f"{hashlib.sha256(content).hexdigest()[:16]}.yaml", content


class Trtllm(LocalEngine):
    name = "trtllm"
    display = "TensorRT-LLM"
    color, marker = "#5a5f66", "h"
    distributions = ("tensorrt_llm",)
    version_name = "tensorrt_llm"
    env_prefixes = ("TLLM_", "TRTLLM_")
    needs = ("torch",)
    gpus_only = True
    install = "bench engines install trtllm, with PIP_EXTRA_INDEX_URL naming the vendor's package index"
    module = "tensorrt_llm.commands.serve"
    help_arguments = ("serve", "--help")
    parallel_options = ("--tp_size", "")
    capacity_options = ("--max_batch_size", "")
    caveat = "written from its documentation, never run with this harness"

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        chosen = backend(installation, settings.model)
        arguments = [
            *self.program(installation),
            *("serve", str(settings.model)),
            *("--host", settings.host, "--port", str(port)),
            *(("--backend", chosen) if chosen != "pytorch" else ()),
            *("--max_seq_len", str(settings.max_model_len)),
            *("--extra_llm_api_options", str(_options_file(settings)[0])),
        ]
        # It names its one model by its folder, and accepts any name in requests.
        return Launch(tuple(arguments), settings.served_name, QUIET)

    def prepare(self, settings: EngineSettings) -> None:
        write_whole(*_options_file(settings))

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        return COUNT_TOKENS

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        facts = report.from_log(_LINES) | report.from_argv({"tensor_parallel": "--tp_size"})
        for fact in report.from_log({"overlap": _NO_OVERLAP}).values():
            facts["overlap"] = fact.model_copy(update={"value": not fact.value})
        if sizes := sorted({int(size) for size in _GRAPH.findall(report.log)}):
            facts["graphs"] = EngineFact(value=shortened([*sizes]), source=LOG)
        return facts

    def profiler(self, installation: Installation, capture: CaptureRequest) -> EngineProfiler:
        """Capture a range of steps, which its executor counts from its start."""
        steps = f"{PROFILE_AFTER_STEPS}-{PROFILE_AFTER_STEPS + capture.steps}"
        env = {"TLLM_PROFILE_START_STOP": steps}
        if capture.tool == "torch":
            env["TLLM_TORCH_PROFILE_TRACE"] = str(capture.folder / "trace.json")
        return EngineProfiler(env=env)

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        arguments: dict[str, JsonValue] = {
            "backend": backend(installation, settings.model),
            "model": str(settings.model),
            "max_seq_len": settings.max_model_len,
            **options(settings),
            **self.api_sizes(settings),
        }
        if tensor := arguments.pop("tp_size", None):
            arguments["tensor_parallel_size"] = tensor
        return OfflineFactory(f"{apis.__file__}:Trtllm", arguments, QUIET)
