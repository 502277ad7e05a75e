"""The answer check of a run on disk: `answers.json` holds what was asked, what came back, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.engines.base import TORCH_DTYPES, Encoder, EngineVariant, Installation, Server
from harness.engines.selection import find_engines, make_engine_variants
from harness.fairness.answer_check import OUTPUT_TOKENS, Replies, ask, check, check_prompts
from harness.fairness.reference import Reference, ask_reference, interpreter
from harness.files import write_json
from harness.models.model_folder import ModelFolder, resolve
from harness.runs.folder import ANSWERS
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.schema.fairness import AnswerChecks
from harness.schema.files import read_stored
from harness.telemetry import gpu


def prompts_to_check(resolved: Resolved) -> list[list[int]]:
    """Those of the check; none where the run is not to be checked or its context holds none."""
    if not resolved.settings.check_answers:
        return []
    model = resolved.model.path if resolved.model else Path()
    return check_prompts(model, resolved.workload.vocab_size, resolved.workload.max_model_len)


def ask_engine(
    run: Run, resolved: Resolved, engine_variant: EngineVariant, server: Server, encode: Encoder, exact: bool
) -> None:
    """Ask a server all prompts of the check, where there are any.

    With `exact`, an answer of another length is an error.
    """
    prompts = prompts_to_check(resolved)
    if not prompts:
        return
    in_flight = max(resolved.settings.concurrency or [len(prompts)])
    given = ask(server.target, encode, prompts, in_flight, exact=exact)
    with run.lock:
        replies = _read(run.folder) or Replies(prompts=prompts)
        replies.given.setdefault(engine_variant.label, []).append(given)
        replies.judged = None
        write_json(run.folder / ANSWERS, replies)


def judge_answers(run: Run, resolved: Resolved | None) -> None:
    """Ask the reference, where that was not done, and keep the verdict. Every engine has gone by then.

    Args:
        resolved: None where nothing was measured: model and interpreter are then looked up, and only if there
            is something to judge.

    Raises:
        UsageError: The model of the run is not here any more.
    """
    replies = _read(run.folder)
    if replies is None or replies.judged is not None:
        return
    model = _model(run) if resolved is None else resolved.model
    if not isinstance(replies.reference, Reference):
        found = _installed(run) if resolved is None else iter(resolved.found)
        replies.reference = _reference(run, model, found, replies)
    tokenizer = model.path / "tokenizer.json" if model else None
    known = tokenizer if tokenizer is not None and tokenizer.exists() else None
    engine_variants = [
        engine_variant
        for engine_variant in make_engine_variants(run.settings)
        if engine_variant.label in replies.given
    ]
    replies.judged = check(replies, engine_variants, known)
    write_json(run.folder / ANSWERS, replies)


def judged_answers(folder: Path) -> AnswerChecks | None:
    """The verdict on a run's engines; None where no engine was asked, or their answers are not judged yet."""
    replies = _read(folder)
    return None if replies is None else replies.judged


def _reference(
    run: Run, model: ModelFolder | None, found: Iterator[Installation], replies: Replies
) -> Reference | str:
    if model is None:
        return "only the server knows its model"
    python = interpreter(found)
    if python is None:
        return "transformers is not installed, neither here nor beside an engine"
    settings, log = run.settings, run.folder / "logs" / "reference.log"
    assert settings.dtype != "auto"
    # The reference computes in float32 on either, and a run of a GPU may be judged where there is none.
    device = "cuda" if settings.device == "cuda" and gpu.available() else "cpu"
    return ask_reference(
        python, model.path, device, TORCH_DTYPES[settings.dtype], replies.prompts, OUTPUT_TOKENS, log
    )


def _model(run: Run) -> ModelFolder | None:
    """The model of a run that has begun; None where only its servers know it. Raises UsageError."""
    return None if run.settings.model == "auto" else resolve(run.settings.model)


def _installed(run: Run) -> Iterator[Installation]:
    """The engines of a run that are here. They are looked for when the first one is asked for."""
    yield from find_engines(make_engine_variants(run.settings))[0]


def _read(folder: Path) -> Replies | None:
    path = folder / ANSWERS
    return read_stored(path, Replies) if path.exists() else None
