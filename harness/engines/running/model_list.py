"""Models that a running server lists, with their contexts, and why a server cannot be used."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from harness.engines.base import beside
from harness.engines.selfreport import value_at
from harness.engines.server_pages import get, request
from harness.errors import EngineError, UsageError
from harness.loadgen.load_plan import Target
from harness.records.stream import read_error

#: What OpenSSL says of certificates (X509_V_ERR_*): out of date, and made for another name or address.
_EXPIRED, _OTHER_NAME = (9, 10), (62, 64)
#: Type of the frame (SETTINGS) with which a server that speaks only HTTP/2 answers, as `repr` writes it.
_HTTP2 = "\\x04"
#: By which names servers tell a model's context: vLLM and SGLang, OpenRouter and Together, Groq, LM Studio;
#: llama.cpp in `meta`, of one slot.
_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
#: Where llama.cpp's page of settings has the context of one slot, and the number of slots.
_SLOT = ("default_generation_settings.n_ctx", "total_slots")
#: A gateway whose server is not there yet.
_NOT_YET = (502, 503, 504)
_POLL_S = 0.2
#: Names of models in a message.
_MOST = 8


@dataclass(frozen=True)
class ServedModel:
    """A model by its name in requests; its context in tokens, None where the server does not tell it; the
    models that its server lists where it is none of them; the requests that run at a time, where that is
    known; the page that has context and requests."""

    name: str
    max_model_len: int | None = None
    instead: tuple[str, ...] = ()
    slots: int | None = None
    source: str = "GET /v1/models"


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


def with_context(target: Target, model: ServedModel) -> ServedModel:
    """Add the context that another page tells where the list of models does not: llama.cpp's, whose context
    is shared out to slots, or Ollama's, which knows it once a model is loaded and cuts longer prompts."""
    root, versioned, _ = target.path.rpartition("/v1/")
    if model.max_model_len is not None or not versioned:
        return model
    settings = _page(target, root + "/props")
    context, slots = (value_at(settings, place) for place in _SLOT)
    if isinstance(context, int) and isinstance(slots, int):
        return replace(model, max_model_len=context, slots=slots, source="GET /props")
    loaded = _loaded(target, root, model.name)
    if loaded is None or loaded:
        return replace(model, max_model_len=loaded, source="GET /api/ps")
    with suppress(OSError, http.client.HTTPException):
        body = json.dumps({"model": model.name, "prompt": "a", "max_tokens": 1})
        request(target, "POST", target.path, target.answer_s, body)  # which loads it
    return replace(model, max_model_len=_loaded(target, root, model.name) or None, source="GET /api/ps")


def _loaded(target: Target, root: str, name: str) -> int | None:
    """The context of a model that an Ollama server has loaded, 0 where it has not; None: it is none."""
    page = _page(target, root + "/api/ps")
    models = value_at(page, "models")
    if not isinstance(models, list):
        return None
    contexts = [value_at(model, "context_length") for model in models if _named(model, name)]
    return next((context for context in contexts if isinstance(context, int)), 0)


def _named(model: JsonValue, name: str) -> bool:
    return value_at(model, "model") in (name, f"{name}:latest")


def _page(target: Target, path: str) -> JsonValue:
    try:
        content: JsonValue = json.loads(get(target, path) or "null")
    except (ValueError, RecursionError):
        return None
    return content


def listing(names: Sequence[str]) -> str:
    """The names of models; a gateway has hundreds."""
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")


def _lacks(target: Target, name: str) -> bool:
    """Return whether the server denies having the model. Some have models that they do not list."""
    body = json.dumps({"model": name, "prompt": "a", "max_tokens": 1})
    try:
        status, content = request(target, "POST", target.path, target.answer_s, body)
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
            if wait_s:
                fault.message += f", after {wait_s:g} s of --wait-ready"
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


def no_answer(target: Target, error: Exception) -> EngineError:
    """Explain a connection that did not come about, or brought no HTTP."""
    place = target.place
    if target.proxy is not None and not isinstance(error, ssl.SSLError | http.client.BadStatusLine):
        through = f"{target.peer[0]}:{target.peer[1]}"
        hint = f"check the proxy in the environment, or put {target.host} into NO_PROXY"
        return EngineError(f"{place} is not reached through the proxy {through}: {error}", hint)
    if isinstance(error, socket.gaierror):
        return EngineError(
            f"the name {target.host} is unknown: {error.strerror}", "check the address and the DNS"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(target, error)
    if isinstance(error, ssl.SSLError) and error.reason == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
        return _speaks_only_http2(place)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return EngineError(
            f"{place} does not speak TLS as it should: {reason}", "try http:// in the address", new_run=True
        )
    if isinstance(error, TimeoutError):
        return EngineError(f"{place} does not answer in time", "check the address, or a firewall on the way")
    if isinstance(error, http.client.BadStatusLine):
        if _HTTP2 in repr(str(error)):
            return _speaks_only_http2(place)
        return EngineError(
            f"{place} does not answer in HTTP: {error}", "try https:// in the address", new_run=True
        )
    return EngineError(
        f"no server answers at {place}: {error}",
        "start it, check the address, or wait for it with --wait-ready SECONDS",
    )


def _speaks_only_http2(place: str) -> EngineError:
    return EngineError(
        f"{place} speaks only HTTP/2, and bench speaks HTTP/1.1",
        "put a proxy before it that speaks HTTP/1.1, like nginx",
    )


def _certificate(target: Target, error: ssl.SSLCertVerificationError) -> EngineError:
    message = f"the certificate of {target.place} is not accepted: {error.verify_message}"
    if error.verify_code in _OTHER_NAME:
        return EngineError(message, "use a name in the address that the certificate is for", new_run=True)
    if error.verify_code in _EXPIRED:
        return EngineError(message, "renew the certificate, or set this machine's clock")
    return EngineError(
        message,
        "if you trust the server, name its certificate or authority with --ca-cert FILE",
        new_run=True,
    )


#: By status, what a server does with a request, and what to do about it.
_REFUSALS = {
    403: (
        "does not allow {path}",
        "check the key, the headers that a gateway wants (--header), and --served-model",
    ),
    404: (
        "has no {path}, or not this model",
        "check the path in the address, --endpoint and --served-model",
    ),
    429: ("limits how much it is asked", "lower the load, or ask for a higher limit"),
}


def refusal(target: Target, path: str, status: int, body: str) -> EngineError:
    """Explain an answer other than 200 to `path`."""
    place, reason = target.place, read_error(body.encode())
    if status == 401:
        if {"Authorization", "x-api-key"} & target.headers.keys():
            hint = "check the key in the variable that --api-key-env names"
            return EngineError(f"{place} refuses the API key (401): {reason}", hint)
        hint = "put the key into an environment variable and name that with --api-key-env"
        return EngineError(f"{place} wants an API key (401): {reason}", hint, new_run=True)
    if status in _REFUSALS:
        complaint, hint = _REFUSALS[status]
        return EngineError(f"{place} {complaint.format(path=path)} ({status}): {reason}", hint, new_run=True)
    if status // 100 == 3:
        return EngineError(
            f"{place} redirects {path} to another address ({status}), which is not followed",
            "use that address, which is often the same with https://",
        )
    if status == 400 and "HTTPS" in body:
        return EngineError(f"{place} speaks TLS: {reason}", "write https:// in the address", new_run=True)
    hint = "see the server's log" if status >= 500 else "change the option that it names, or its own settings"
    return EngineError(f"{place} answers {status} to {path}: {reason}", hint)
