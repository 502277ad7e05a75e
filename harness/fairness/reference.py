"""The reference of the answer check: the same model in float32 with transformers."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from pydantic import Field, ValidationError

from harness.engines.base import Installation
from harness.engines.process.guard import Order
from harness.engines.process.tree import Guarded, describe_exit
from harness.schema.base import Strict, first_fault

SCRIPT = Path(__file__).parent / "reference_worker.py"
#: The number of best tokens that are stored for each position.
CANDIDATES = 16
TIMEOUT_S = 600.0
#: Share of the free memory that the weights in float32 may take.
MEMORY_SHARE = 0.5


class ReferenceAnswer(Strict):
    """One greedy answer, and for each position the best tokens with how far each is below the first.

    `end` are those where the end-of-sequence token is, which is not in `tokens`; None: there is none.
    """

    tokens: list[int]
    candidates: list[list[tuple[int, float]]]
    end: list[tuple[int, float]] | None = None


class Reference(Strict):
    """The reference's answers to all prompts.

    `noise` is the largest change of any logit when the same model runs in the dtype of the engines; `spread`
    the standard deviation of the logits; `ends` are the model's end-of-sequence tokens.
    """

    version: str
    noise: float
    spread: float
    ends: list[int] = Field(default_factory=list)
    answers: list[ReferenceAnswer]


def interpreter(installations: Iterable[Installation]) -> Path | None:
    """An interpreter with torch and transformers: our own, else that of an engine; None if there is none.

    Args:
        installations: The engines that are there, which are not looked at where our own does.
    """
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return Path(sys.executable)
    able = (engine.python for engine in installations if {"torch", "transformers"} <= {*engine.versions})
    return next(able, None)


def ask_reference(
    python: Path,
    model: Path,
    device: str,
    dtype: str,
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    log: Path,
) -> Reference | str:
    """The reference's answers, or a sentence why it cannot run here."""
    size = 2 * sum(path.stat().st_size for path in model.glob("*.safetensors"))
    if device == "cpu" and size > MEMORY_SHARE * psutil.virtual_memory().available:
        return f"the model in float32 needs up to {size / 2**30:.1f} GiB, too much for this machine"
    job = {
        "model": str(model),
        "device": device,
        "dtype": dtype,
        "prompts": prompts,
        "output_tokens": output_tokens,
        "candidates": CANDIDATES,
    }
    with TemporaryDirectory(prefix="rosebench-reference-") as scratch:
        job_file, result_file = Path(scratch, "job.json"), Path(scratch, "result.json")
        job_file.write_text(json.dumps(job))
        argv = [str(python), str(SCRIPT), str(job_file), str(result_file)]
        every = sorted(os.sched_getaffinity(0))  # nothing is measured meanwhile, so it may use all CPUs
        order = Order(argv, os.environ | {"HF_HUB_OFFLINE": "1"}, str(log), every)
        process = Guarded("the reference", order)
        if (code := process.finish(TIMEOUT_S)) != 0:
            ended = f"did not end within {TIMEOUT_S:.0f} s"
            if code is not None:
                ended = f"ended with {describe_exit(code)}"
            return f"transformers {ended}: {process.cause()}"
        try:
            return Reference.model_validate_json(result_file.read_bytes())
        except ValidationError as error:
            return f"transformers gave no answers: {first_fault(error)}"
