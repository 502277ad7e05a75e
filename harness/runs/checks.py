"""Checks of an engine beside its cells: `answers.json` of the answer check, `accuracy.json` of the task."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from harness.engines.base import TORCH_DTYPES, Encoder, EngineVariant, Installation, RequestSettings, Server
from harness.engines.selection import find_engines, make_engine_variants
from harness.engines.server_pages import request
from harness.errors import EngineError
from harness.fairness.answer_check import OUTPUT_TOKENS, Replies, ask, check, check_prompts
from harness.fairness.asking import ask_all, is_unanswered
from harness.fairness.reference import Reference, ask_reference, interpreter
from harness.fairness.task import OUTPUT_TOKENS as ITEM_TOKENS
from harness.fairness.task import TEXT, TaskReplies, is_right, judge_task, make_items
from harness.files import write_json
from harness.models.model_folder import ModelFolder, resolve
from harness.models.text_tokens import load_tokenizer
from harness.runs.folder import ACCURACY, ANSWERS
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.schema.fairness import AnswerChecks, TaskReply, TaskScores
from harness.schema.files import read_if_there
from harness.schema.run_info import Check
from harness.telemetry import gpu
from harness.workload import PlannedRequest

#: Requests of the task in flight where the load is no closed loop.
IN_FLIGHT = 8
PERPLEXITY_TIMEOUT_S = 120.0
#: Above this a perplexity is no number.
_MOST = log(sys.float_info.max)


def checked_as(engine_variant: EngineVariant, settings: RequestSettings) -> RequestSettings | None:
    """Return how a server is asked for what checks it; None where it cannot be.

    It is asked for greedy completions without the user's own fields, also where chats are measured or tokens
    are drawn: one model answers all. A running server that
    is asked for chats may have nothing else, and text of an unknown tokenizer is no prompt to compare.
    """
    unknown = settings.endpoint != "completions" or (settings.text and settings.tokenizer is None)
    if engine_variant.server is not None and unknown:
        return None
    return replace(settings, endpoint="completions", user_fields={})


def checks_after_cells(run: Run, resolved: Resolved, label: str) -> list[Check]:
    """List the checks that follow an engine's cells."""
    answers: list[Check] = ["answers"] if prompts_to_check(resolved) else []
    accuracy: list[Check] = ["accuracy"] if task_tokenizer(run, resolved, label) is not None else []
    return answers + accuracy


def prompts_to_check(resolved: Resolved) -> list[list[int]]:
    """Return the prompts of the answer check; none where it is not wanted or the context holds none."""
    if not resolved.settings.check_answers:
        return []
    model = resolved.model.path if resolved.model else Path()
    return check_prompts(model, resolved.workload.vocab_size, resolved.workload.max_model_len)


def ask_engine(
    run: Run, resolved: Resolved, engine_variant: EngineVariant, server: Server, encode: Encoder, exact: bool
) -> None:
    """Ask a server all prompts of the answer check, where there are any.

    With `exact`, an answer of another length is an error.
    """
    prompts = prompts_to_check(resolved)
    if not prompts:
        return
    in_flight = max(resolved.settings.concurrency or [len(prompts)])
    answers = ask(server.target, encode, prompts, in_flight, exact=exact)
    with run.lock:
        replies = read_if_there(run.folder / ANSWERS, Replies) or Replies(prompts=prompts)
        replies.by_engine.setdefault(engine_variant.label, []).append(answers)
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
    replies = read_if_there(run.folder / ANSWERS, Replies)
    if replies is None or replies.judged is not None:
        return
    variants = make_engine_variants(run.settings)
    if resolved is not None:
        model, installations = resolved.model, iter(resolved.installations)
    else:
        model = None if run.settings.model == "auto" else resolve(run.settings.model)
        installations = _installed(variants)
    if not isinstance(replies.reference, Reference):
        replies.reference = _reference(run, model, installations, replies)
    tokenizer = model.path / "tokenizer.json" if model else None
    asked_variants = [variant for variant in variants if variant.label in replies.by_engine]
    replies.judged = check(replies, asked_variants, tokenizer if tokenizer and tokenizer.exists() else None)
    write_json(run.folder / ANSWERS, replies)


def judged_answers(folder: Path) -> AnswerChecks | None:
    """Return the verdict on a run's engines; None where none was asked, or answers are not judged yet."""
    replies = read_if_there(folder / ANSWERS, Replies)
    return None if replies is None else replies.judged


def _reference(
    run: Run, model: ModelFolder | None, installations: Iterator[Installation], replies: Replies
) -> Reference | str:
    if model is None:
        return "only the server knows its model"
    python = interpreter(installations)
    if python is None:
        return "transformers is not installed, neither here nor beside an engine"
    settings, log = run.settings, run.folder / "logs" / "reference.log"
    assert settings.dtype != "auto"
    # The reference computes in float32 on either, and a run of a GPU may be judged where there is none.
    device = "cuda" if settings.device == "cuda" and gpu.available() else "cpu"
    return ask_reference(
        python, model.path, device, TORCH_DTYPES[settings.dtype], replies.prompts, OUTPUT_TOKENS, log
    )


def _installed(variants: list[EngineVariant]) -> Iterator[Installation]:
    """Yield the engines that are here. They are looked for when the first one is needed."""
    yield from find_engines(variants)[0]


def task_tokenizer(run: Run, resolved: Resolved, label: str) -> Tokenizer | None:
    """Return the tokenizer of the task's items where an engine is to be asked them: once, and where its model
    has trained weights, a tokenizer.json and a context that holds them. None where it is not."""
    model = resolved.model
    if not resolved.settings.accuracy or model is None or not model.trained:
        return None
    before = read_if_there(run.folder / ACCURACY, TaskReplies)
    if before is not None and label in before.by_engine:
        return None
    tokenizer = load_tokenizer(model.path)
    if tokenizer is None:
        return None
    longest = max(len(tokenizer.encode(item.prompt).ids) for item in make_items())
    return tokenizer if longest + ITEM_TOKENS <= resolved.workload.max_model_len else None


def score_engine(
    run: Run, resolved: Resolved, engine_variant: EngineVariant, server: Server, encode: Encoder
) -> None:
    """Ask a server the items of the task, where it is to be asked them.

    Raises EngineError where it has too much to do to answer all of them, or is not reached.
    """
    label = engine_variant.label
    tokenizer = task_tokenizer(run, resolved, label)
    if tokenizer is None:
        return
    items = make_items()
    prompts = [np.array(tokenizer.encode(item.prompt).ids, np.int32) for item in items]
    planned = [
        PlannedRequest(index, None, prompt, ITEM_TOKENS, text=item.prompt)
        for index, (prompt, item) in enumerate(zip(prompts, items, strict=True))
    ]
    in_flight = max(resolved.settings.concurrency or [IN_FLIGHT])
    answers = ask_all(server.target, encode, planned, in_flight, exact_tokens=None)
    unanswered = [answer.error for answer in answers if is_unanswered(answer)]
    if unanswered:
        raise EngineError(
            f"{label} did not answer {len(unanswered)} of {len(items)} items: {unanswered[0]}",
            "leave out the task with --no-accuracy, or ask with fewer requests in flight",
        )
    reply = TaskReply(
        right=[
            answer.error is None and is_right(item, answer.text)
            for answer, item in zip(answers, items, strict=True)
        ],
        failed=sum(answer.error is not None for answer in answers),
        perplexity=_perplexity(server, tokenizer.encode(TEXT).ids, resolved.workload.max_model_len),
    )
    with run.lock:
        replies = read_if_there(run.folder / ACCURACY, TaskReplies) or TaskReplies()
        replies.by_engine.setdefault(label, reply)
        write_json(run.folder / ACCURACY, replies)


def task_scores(folder: Path) -> TaskScores | None:
    """Return the scores of a run's engines; None where none was asked."""
    replies = read_if_there(folder / ACCURACY, TaskReplies)
    return judge_task(make_items(), replies.by_engine) if replies is not None and replies.by_engine else None


def _perplexity(server: Server, ids: list[int], context: int) -> float | None:
    """Return the perplexity of the fixed text, a token, by the logprobs that `echo` gives; None without."""
    if len(ids) + 1 > context:
        return None
    body = {
        "model": server.served_name, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True,
        "logprobs": 1,
    }  # fmt: skip
    try:
        status, answer = request(
            server.target, "POST", server.target.path, PERPLEXITY_TIMEOUT_S, json.dumps(body)
        )
        if status != 200:
            return None
        choice = json.loads(answer)["choices"][0]
        logprobs = [float(logprob) for logprob in choice["logprobs"]["token_logprobs"][1 : len(ids)]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError):
        return None
    mean = sum(logprobs) / len(logprobs) if len(logprobs) == len(ids) - 1 else -inf
    return exp(-mean) if -_MOST < mean < _MOST else None
