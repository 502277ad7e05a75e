"""llama.cpp: `llama-server`, from the engine's environment or from PATH.

It opens GGUF files, so the model's folder must hold one. It has slots instead of a batch, each with an equal
share of the context given. Its streams end with `timings`, which tell prefill and reused prompt tokens.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from harness.engines.base import EngineSettings, Installation, Missing
from harness.engines.cores import physical_cores
from harness.engines.find import place
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.server import Launch
from harness.errors import EngineError

PROGRAM = "llama-server"
#: Slots: as many as there are requests in flight, within these bounds.
MIN_SLOTS, MAX_SLOTS = 8, 64
#: Layers on the GPU: more than any model has.
ALL_LAYERS = 999
_VERSION = re.compile(r"version: (\S+)")


def model_file(model: Path) -> Path:
    """The one GGUF file of the folder. Raises EngineError when there is none, or several."""
    files = sorted(model.glob("*.gguf"))
    if len(files) != 1:
        raise EngineError(
            f"llama.cpp needs one GGUF file in {model}, there are {len(files)}",
            "make one with its convert_hf_to_gguf.py, or leave this engine out",
        )
    return files[0]


class Llamacpp(LocalEngine):
    name = "llamacpp"
    display = "llama.cpp"
    distributions = ()
    install = f"put {PROGRAM} into PATH, or beside the Python that engines.yaml names for llamacpp"
    module = ""
    caveat = "not run with this harness yet"

    def find(self) -> Installation | Missing:
        """The program beside the environment's Python, else the one in PATH; `python` is the program."""
        where = place(self.name)
        beside = where.python.parent / PROGRAM
        program = str(beside) if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
        if program is None:
            return Missing(self.name, f"there is no {PROGRAM} in PATH or beside {where.python}", self.install)
        try:
            done = subprocess.run(
                [program, "--version"], capture_output=True, text=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            return Missing(self.name, f"{program} does not run: {error}", self.install)
        version = _VERSION.search(done.stdout + done.stderr)
        how = where.how if beside == Path(program) else "PATH"
        return Installation(
            self.name, version[1] if version else "unknown", PROGRAM, Path(program), how, where.env
        )

    def trouble(self, installation: Installation) -> str | None:
        return None

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        slots = min(max(settings.max_concurrency or 0, MIN_SLOTS), MAX_SLOTS)
        cores = [core for core in physical_cores() if settings.cpus is None or set(core) & set(settings.cpus)]
        arguments = [
            *(str(installation.python), "--model", str(model_file(settings.model))),
            *("--alias", settings.served_name),
            *("--host", settings.host, "--port", str(port)),
            *("--parallel", str(slots), "--ctx-size", str(slots * settings.max_model_len)),
            *("--seed", str(settings.seed), "--metrics", "--no-webui"),
        ]
        if settings.device == "cuda":
            arguments += ["--n-gpu-layers", str(ALL_LAYERS)]
        else:
            arguments += ["--n-gpu-layers", "0", "--threads", str(max(1, len(cores) - 1))]
        if not settings.caches_prefixes and "--no-cache-prompt" in self.flags(installation):
            arguments.append("--no-cache-prompt")
        return Launch(tuple(arguments), settings.served_name)

    def help_command(self, installation: Installation) -> list[str]:
        return [str(installation.python), "--help"]

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        raise EngineError("llama.cpp has no in-process API for a batch of prompts", "use `bench online`")
