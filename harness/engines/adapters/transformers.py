"""transformers: `transformers serve` with continuous batching, and `generate` on a whole batch."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
from pydantic import JsonValue

from harness.engines.adapters import apis
from harness.engines.base import EngineSettings, Installation, Launch, RequestSettings
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.selfreport import ARGV, OMP_THREADS, SelfReport
from harness.paths import module_command
from harness.schema.fairness import EngineFact

CB_BLOCK = 32
SHIM = Path(__file__).parent / "shims" / "transformers_cli.py"
#: What its command line asks for.
_OPTIONS = {
    "device": "--device",
    "dtype": "--dtype",
    "blocks": "--cb-num-blocks",
    "block_size": "--cb-block-size",
    "max_batched_tokens": "--cb-max-batch-tokens",
}


def environment(settings: EngineSettings) -> dict[str, str]:
    """Variables: offline, and on a CPU a number of threads."""
    threads = {} if settings.threads is None else {OMP_THREADS: str(settings.threads)}
    return {"HF_HUB_OFFLINE": "1", **threads}


class Transformers(LocalEngine):
    name = "transformers"
    display = "transformers"
    color, marker = "#b8609a", "D"
    distributions = ("transformers",)
    install = "bench engines install transformers"
    needs = ("torch", "fastapi", "uvicorn", "openai")
    mixes_lengths = False
    text_only = True
    module = "transformers"
    help_arguments = ("serve", "--help")

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        without_cache = [str(installation.python), str(SHIM)]
        arguments = [
            *(self.program(installation) if settings.caches_prefixes else without_cache),
            *("serve", str(settings.model)),
            *("--host", settings.host, "--port", str(port)),
            *("--device", settings.device, "--dtype", settings.torch_dtype),
            *("--default-seed", str(settings.seed)),
            *("--continuous-batching", "--cb-block-size", str(CB_BLOCK)),
        ]
        if settings.device == "cpu":  # left alone its KV cache takes most of the memory
            blocks = settings.full_contexts * -(-settings.max_model_len // CB_BLOCK)
            arguments += ["--cb-num-blocks", str(blocks)]
            arguments += ["--cb-max-batch-tokens", str(max(settings.max_model_len, 1024))]
        # The model is pinned: requests must call it by its folder. Its SIGINT handler outlives 4 s.
        env = environment(settings)
        return Launch(tuple(arguments), str(settings.model), env, stop_signal=signal.SIGTERM, grace_s=3)

    def program(self, installation: Installation) -> list[str]:
        # bundles have no programs
        return module_command("transformers.cli.transformers", installation.python)

    def common_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Without the fields that it refuses; usage comes unasked."""
        greedy = {"temperature": 0, "frequency_penalty": 0}  # its repetition penalty is one above the latter
        return {"stream": True, "seed": request_settings.seed, **greedy}

    def length_fields(self, request_settings: RequestSettings, output_tokens: int) -> dict[str, object]:
        """Fix the length through its `generation_config`, which replaces the model's: no token ends it."""
        if not request_settings.ignore_eos:
            return {"max_tokens": output_tokens}
        generation = {
            "max_new_tokens": output_tokens,
            "min_new_tokens": output_tokens,
            "eos_token_id": -1,  # without one, that of the server's first request
            "do_sample": request_settings.is_sampled,
        }
        return {"max_tokens": output_tokens, "generation_config": msgspec.json.encode(generation).decode()}

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        """Settings of its command line and environment: it reports none."""
        facts = report.from_argv(_OPTIONS) | report.from_env({"threads": OMP_THREADS})
        blocks, size = facts.pop("blocks", None), facts.get("block_size")
        if blocks and size and isinstance(blocks.value, int) and isinstance(size.value, int):
            facts["kv_tokens"] = EngineFact(value=blocks.value * size.value, source=ARGV)
        if "--continuous-batching" in report.argv:
            facts["prefix_cache"] = EngineFact(value=str(SHIM) not in report.argv, source=ARGV)
        return facts

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        arguments: dict[str, JsonValue] = {
            "model": str(settings.model),
            "device": settings.device,
            "dtype": settings.torch_dtype,
        }
        return OfflineFactory(f"{apis.__file__}:Transformers", arguments, environment(settings))
