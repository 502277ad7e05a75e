"""With which versions a run was made."""

from __future__ import annotations

import platform
from collections.abc import Iterable

import harness
from harness.engines.base import Installation
from harness.schema.results import Versions
from harness.telemetry.revision import git_revision, source_hash


def versions(installations: Iterable[Installation]) -> Versions:
    """The versions of the engines of a run; torch's is that of the first engine that has it."""
    engines = list(installations)
    found = {engine.engine: engine.version for engine in engines}
    shared = {
        name: next((e.versions[name] for e in engines if name in e.versions), None)
        for name in ("torch", "transformers")
    }
    return Versions(
        git_rev=git_revision(),
        source=source_hash(),
        rosebench=harness.__version__,
        roseinfer=found.get("roseinfer"),
        vllm=found.get("vllm"),
        sglang=found.get("sglang"),
        tensorrt_llm=found.get("trtllm"),
        torch=shared["torch"],
        transformers=found.get("transformers") or shared["transformers"],
        python=platform.python_version(),
    )
