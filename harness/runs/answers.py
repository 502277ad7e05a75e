"""The answer check of a run on disk: `answers.json` holds what was asked, what came back, and the verdict."""

from __future__ import annotations

from pathlib import Path

from harness.engines.base import Encoder, EngineVariant, Server
from harness.fairness.answer_check import Replies, ask, check
from harness.fairness.check_prompts import OUTPUT_TOKENS, check_prompts
from harness.fairness.reference import Reference, ask_reference, interpreter
from harness.files import write_json
from harness.runs.folder import ANSWERS
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.schema.fairness import AnswerChecks
from harness.schema.stored import read_stored


def ask_engine(
    run: Run, resolved: Resolved, engine_variant: EngineVariant, server: Server, encode: Encoder, exact: bool
) -> None:
    """Ask a server all prompts of the check, where the run is to be checked and its context holds any.

    With `exact`, an answer of another length is an error.
    """
    if not resolved.settings.check_answers:
        return
    model = resolved.model.path if resolved.model else Path()
    prompts = check_prompts(model, resolved.workload.vocab_size, resolved.workload.max_model_len)
    if not prompts:
        return
    given = ask(server.target, encode, prompts, exact=exact)
    with run.lock:
        replies = _read(run.folder) or Replies(prompts=prompts)
        replies.given.setdefault(engine_variant.label, []).append(given)
        replies.judged = None
        write_json(run.folder / ANSWERS, replies)


def judge_answers(run: Run, resolved: Resolved) -> None:
    """Ask the reference, where that was not done, and keep the verdict. Every engine has gone by then."""
    replies = _read(run.folder)
    if replies is None or replies.judged is not None:
        return
    if not isinstance(replies.reference, Reference):
        replies.reference = _reference(run, resolved, replies)
    tokenizer = resolved.model.path / "tokenizer.json" if resolved.model else None
    known = tokenizer if tokenizer is not None and tokenizer.exists() else None
    engine_variants = [
        engine_variant for engine_variant in resolved.engine_variants if engine_variant.label in replies.given
    ]
    replies.judged = check(replies, engine_variants, known)
    write_json(run.folder / ANSWERS, replies)


def unjudged(run: Run) -> bool:
    """Whether engines were asked and their answers are not judged yet."""
    replies = _read(run.folder)
    return replies is not None and replies.judged is None


def judged_answers(folder: Path) -> AnswerChecks | None:
    """The verdict on a run's engines; None where no engine was asked, or their answers are not judged yet."""
    replies = _read(folder)
    return None if replies is None else replies.judged


def _reference(run: Run, resolved: Resolved, replies: Replies) -> Reference | str:
    if resolved.model is None:
        return "only the server knows its model"
    python = interpreter(resolved.found)
    if python is None:
        return "transformers is not installed, neither here nor beside an engine"
    settings = resolved.engine_settings(resolved.engine_variants[0])
    log = run.folder / "logs" / "reference.log"
    return ask_reference(
        python, settings.model, settings.device, settings.torch_dtype, replies.prompts, OUTPUT_TOKENS, log
    )


def _read(folder: Path) -> Replies | None:
    path = folder / ANSWERS
    return read_stored(path, Replies) if path.exists() else None
