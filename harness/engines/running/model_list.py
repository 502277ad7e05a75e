"""Models that a running server lists, with their contexts."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.engines.base import beside
from harness.engines.running.faults import no_answer, refusal
from harness.engines.server_pages import request
from harness.errors import EngineError, UsageError
from harness.loadgen.load_plan import Target
from harness.records.stream import read_error

#: By which names servers tell a model's context: vLLM and SGLang, OpenRouter and Together, Groq, LM Studio;
#: llama.cpp in `meta`, of one slot.
_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
#: A gateway whose server is not there yet.
_NOT_YET = (502, 503, 504)
_POLL_S = 0.2
#: For a request of a few tokens: a server may load its model at the first one.
ANSWER_S = 300.0
#: Names of models in a message.
_MOST = 8


@dataclass(frozen=True)
class ServedModel:
    """A model by its name in requests; its context in tokens, None where the server does not tell it; the
    models that its server lists where it is none of them."""

    name: str
    max_model_len: int | None = None
    instead: tuple[str, ...] = ()


def served_model(target: Target, name: str | None, wait_s: float = 0.0) -> ServedModel:
    """The model that is `name`, or the only one.

    Args:
        wait_s: How long the server may take until it answers.

    Raises:
        EngineError: it does not answer, refuses the key, or lists no model.
        UsageError: it lists several and none is wanted, or does not have the one that is.
    """
    status, content = _ask(target, wait_s)
    models = _models(content) if status == 200 else None
    if name is not None:
        models = models or {}
        instead = () if name in models else tuple(models)
        if instead and _lacks(target, name):
            raise UsageError(
                f"the server at {target.place} has no model {name!r}; it lists {listing(instead)}",
                f"start a new run with one of them, such as --served-model {instead[0]}",
            )
        return ServedModel(name, _context(models.get(name, {})), instead)
    other = "check the address, or name the model with --served-model"
    if status == 404:
        reason = read_error(content.encode())
        raise EngineError(
            f"{target.place} has no GET {models_path(target)}, which lists models (404): {reason}",
            "name the model with --served-model, or check the path in the address",
            new_run=True,
        )
    if status != 200:
        raise refusal(target, f"GET {models_path(target)}", status, content)
    if models is None:
        raise EngineError(
            f"GET {models_path(target)} of {target.place} is not a list of models",
            f"the server must speak OpenAI's API; {other}",
        )
    if not models:
        raise EngineError(f"{target.place} lists no model", f"load a model into that server; {other}")
    if len(models) > 1:
        raise UsageError(
            f"{target.place} serves several models: {listing(list(models))}",
            "choose one with --served-model NAME",
        )
    [(name, model)] = models.items()
    return ServedModel(name, _context(model))


def listing(names: Sequence[str]) -> str:
    """The names of models; a gateway has hundreds."""
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _lacks(target: Target, name: str) -> bool:
    """Return whether the server denies having the model. Some have models that they do not list."""
    body = json.dumps({"model": name, "prompt": "a", "max_tokens": 1})
    try:
        status, content = request(target, "POST", target.path, ANSWER_S, body)
    except (OSError, http.client.HTTPException):
        return False
    named = re.search(rf"(?<![\w/]){re.escape(name)}(?![\w/])", read_error(content.encode()))
    return status in (400, 404, 422) and named is not None


def check_answers(target: Target) -> None:
    """Raises EngineError where the server does not answer or refuses the key; its list may be forbidden."""
    _ask(target, 0.0)


def _ask(target: Target, wait_s: float) -> tuple[int, str]:
    """Status and body of the list; one that is no list, or is not to be had, is the caller's to judge."""
    until = time.monotonic() + wait_s
    while True:
        try:
            status, content = request(target, "GET", models_path(target))
        except (OSError, http.client.HTTPException) as error:
            fault = no_answer(target, error)
        else:
            if status not in _NOT_YET:
                break
            fault = refusal(target, f"GET {models_path(target)}", status, content)
        if time.monotonic() >= until:
            raise fault
        time.sleep(_POLL_S)
    if status // 100 == 3 or status == 401 or (status == 400 and "HTTPS" in content):
        raise refusal(target, f"GET {models_path(target)}", status, content)
    return status, content


def _models(content: str) -> dict[str, Mapping[str, Any]] | None:
    try:
        return {str(model["id"]): model for model in json.loads(content)["data"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _context(model: Mapping[str, Any]) -> int | None:
    meta = model.get("meta")
    fields = {**meta, **model} if isinstance(meta, dict) else model
    values = (fields.get(key) for key in _CONTEXT)
    return next((value for value in values if isinstance(value, int) and value > 1), None)


def models_path(target: Target) -> str:
    """Return the path of the list of models, beside the completions at `target`."""
    return beside(target.path, "/models")
