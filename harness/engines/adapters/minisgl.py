"""mini-sglang's `minisgl.llm.LLM`, from a checkout or a wheel in an environment of its own.

Its server takes chats alone, counts no tokens and ends every answer with `stop`, so it is measured in-process
only. It has never been run with this harness: the names are those of its code of March 2026."""

from __future__ import annotations

from pydantic import JsonValue

from harness.engines.adapters import apis
from harness.engines.base import EngineSettings, Installation, Launch
from harness.engines.local import LocalEngine, OfflineFactory
from harness.errors import EngineError

#: Options of its command line that have other names in its `LLM`.
_ARGUMENTS = {"max_running_requests": "max_running_req"}


class Minisgl(LocalEngine):
    name = "minisgl"
    display = "mini-sglang"
    color, marker = "#4c8c2b", "<"
    distributions = ("minisgl",)
    install = "pip install a checkout of sgl-project/mini-sglang into an environment that BENCH_PEERS names"
    needs = ("torch",)
    gpus_only = True
    module = "minisgl.llm"
    env_prefixes = ("MINISGL_",)
    capacity_options = ("--max-running-requests", "--memory-ratio")
    caveat = "written from its code, never run with this harness"

    def program(self, installation: Installation) -> list[str]:
        return [str(installation.python), "-m", "minisgl"]

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        raise EngineError("mini-sglang's server counts no tokens", "use `bench offline`")

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        sizes = {_ARGUMENTS.get(name, name): value for name, value in self.api_sizes(settings).items()}
        arguments: dict[str, JsonValue] = {
            "model_path": str(settings.model),
            "dtype": settings.torch_dtype,
            "max_seq_len_override": settings.max_model_len,
            "cache_type": "radix" if settings.caches_prefixes else "naive",
            **sizes,
        }
        return OfflineFactory(f"{apis.__file__}:Minisgl", arguments, {"HF_HUB_OFFLINE": "1"})
