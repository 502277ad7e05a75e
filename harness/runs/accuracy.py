"""The accuracy task of a run on disk: `accuracy.json` holds what each engine answered."""

from __future__ import annotations

import http.client
import json
import sys
from math import exp, inf, log
from pathlib import Path

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from harness.engines.base import Encoder, EngineVariant, Server
from harness.engines.server_pages import request
from harness.errors import EngineError
from harness.fairness.asking import ask_all, is_unanswered
from harness.fairness.task import OUTPUT_TOKENS, TEXT, is_right, judge_task, make_items
from harness.files import write_json
from harness.loadgen.load_plan import WireRequest
from harness.models.text_tokens import load_tokenizer
from harness.runs.folder import ACCURACY
from harness.runs.resolved import Resolved
from harness.runs.run_state import Run
from harness.schema.base import Strict
from harness.schema.fairness import TaskReply, TaskScores
from harness.schema.files import read_stored
from harness.workload import PlannedRequest

#: Requests in flight where the load is no closed loop.
IN_FLIGHT = 8
PERPLEXITY_TIMEOUT_S = 120.0
#: Above this a perplexity is no number.
_MOST = log(sys.float_info.max)


class TaskReplies(Strict):
    """`accuracy.json`: replies by the label of the engine."""

    given: dict[str, TaskReply] = Field(default_factory=dict)


def task_tokenizer(run: Run, resolved: Resolved, label: str) -> Tokenizer | None:
    """The tokenizer of the task's items where an engine is to be asked them: once, and where its model has
    trained weights, a tokenizer.json and a context that holds them. None where it is not."""
    model = resolved.model
    if not resolved.settings.accuracy or model is None or not model.trained:
        return None
    before = _read(run.folder)
    if before is not None and label in before.given:
        return None
    tokenizer = load_tokenizer(model.path)
    if tokenizer is None:
        return None
    longest = max(len(tokenizer.encode(item.prompt).ids) for item in make_items())
    return tokenizer if longest + OUTPUT_TOKENS <= resolved.workload.max_model_len else None


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
    prompts = [tokenizer.encode(item.prompt).ids for item in items]
    wire = [
        WireRequest(
            index,
            None,
            encode(PlannedRequest(index, None, np.array(ids, np.int32), OUTPUT_TOKENS, text=item.prompt)),
        )
        for index, (ids, item) in enumerate(zip(prompts, items, strict=True))
    ]
    in_flight = max(resolved.settings.concurrency or [IN_FLIGHT])
    answers = ask_all(server.target, wire, in_flight, exact_tokens=None)
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
        replies = _read(run.folder) or TaskReplies()
        replies.given.setdefault(label, reply)
        write_json(run.folder / ACCURACY, replies)


def task_scores(folder: Path) -> TaskScores | None:
    """The scores of a run's engines; None where none was asked."""
    replies = _read(folder)
    return judge_task(make_items(), replies.given) if replies is not None and replies.given else None


def _perplexity(server: Server, ids: list[int], context: int) -> float | None:
    """Of the fixed text, a token, by the logprobs that `echo` gives; None where the server gives none."""
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
        logprobs = json.loads(answer)["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
        known = [float(logprob) for logprob in logprobs]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError):
        return None
    mean = sum(known) / len(known) if len(known) == len(ids) - 1 else -inf
    return exp(-mean) if -_MOST < mean < _MOST else None


def _read(folder: Path) -> TaskReplies | None:
    path = folder / ACCURACY
    return read_stored(path, TaskReplies) if path.exists() else None
