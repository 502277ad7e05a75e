"""Any running server with OpenAI's completions API."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.engines.base import (
    COMPLETIONS,
    Engine,
    EngineSettings,
    Installation,
    Missing,
    RequestSettings,
    Server,
)
from harness.engines.server_pages import request
from harness.errors import EngineError, UsageError
from harness.loadgen.load_plan import Target
from harness.schema.results import LaunchRecord


@dataclass(frozen=True)
class RunningServer:
    """A server that the harness neither starts nor stops."""

    target: Target
    served_name: str
    record: LaunchRecord

    @property
    def pids(self) -> list[int]:
        """Unknown: it may run on another machine."""
        return []

    def check(self) -> None:
        """Raises EngineError if it no longer answers."""
        _get_models(self.target)


class OpenAI(Engine):
    """The server at `base_url` (`http://host:port`, with or without `/v1` or another path before it).

    The API key is read from the environment variable `api_key_env`; it is sent but never stored. Requests
    name `served_model`, or else the only model that the server lists.

    Raises:
        UsageError: the address is not valid, or the variable is not set.
    """

    name = "openai"
    display = "openai"
    color, marker = "#7b68c8", "P"

    def __init__(
        self, base_url: str | None = None, api_key_env: str | None = None, served_model: str | None = None
    ) -> None:
        self._base_url = base_url
        self._served_model = served_model
        self._target = None if base_url is None else _target(base_url, api_key_env)

    def find(self) -> Installation | Missing:
        return Missing(self.name, "a server that is already running", "name it with --base-url")

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Token ids in chunks, asked for only with ignore_eos: both extend OpenAI's API."""
        return {"return_token_ids": True} if request_settings.ignore_eos else {}

    def served_model(self) -> str:
        """The model's name in requests.

        Raises:
            EngineError: the server does not answer, refuses the API key, or lists no model.
            UsageError: it lists several and none is chosen, or it has no address.
        """
        if self._target is None:
            raise UsageError("engine openai needs the address of a running server", "add --base-url URL")
        status, content = _get_models(self._target)
        if self._served_model is not None:
            return self._served_model
        names = _names(self._target, status, content)
        if len(names) > 1:
            where = f"{self._target.host}:{self._target.port}"
            raise UsageError(
                f"{where} serves several models: {', '.join(names)}", "choose one with --served-model NAME"
            )
        return names[0]

    @contextmanager
    def open(self, settings: EngineSettings, log: Path) -> Iterator[Server]:
        name = self.served_model()
        assert self._target is not None
        engine_variant = settings.engine_variant
        record = LaunchRecord(
            engine=self.name,
            variant=engine_variant.ref.variant,
            label=engine_variant.label,
            settings={"base_url": self._base_url, "model": name},
        )
        yield RunningServer(self._target, name, record)


def _target(base_url: str, api_key_env: str | None) -> Target:
    parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
    hint = "write it like http://127.0.0.1:8000"
    try:
        port = parts.port
    except ValueError:
        raise UsageError(f"--base-url {base_url}: the port is not a number", hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UsageError(f"--base-url {base_url} is not the address of a server", hint)
    headers = {}
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            raise UsageError(
                f"--api-key-env {api_key_env}: the variable is not set", f"run `export {api_key_env}=KEY`"
            )
        headers["Authorization"] = f"Bearer {key}"
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if tls else 80), prefix + COMPLETIONS, headers, tls)


def _get_models(target: Target) -> tuple[int, str]:
    """Status and body of the server's list of models.

    Raises:
        EngineError: it does not answer, or refuses the API key.
    """
    where = f"{target.host}:{target.port}"
    try:
        status, content = request(target, "GET", _models_path(target))
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"no server answers at {where}: {error}", "start it, or check --base-url") from None
    if status in (401, 403):
        raise EngineError(f"{where} refuses the API key ({status})", "check --api-key-env")
    return status, content


def _names(target: Target, status: int, content: str) -> list[str]:
    """The models of a list, at least one. Raises EngineError where it is none."""
    where = f"{target.host}:{target.port}"
    other = "or name the model with --served-model"
    if status != 200:
        raise EngineError(
            f"GET {_models_path(target)} of {where} answers {status}", f"check --base-url, {other}"
        )
    try:
        names = [str(model["id"]) for model in json.loads(content)["data"]]
    except (ValueError, KeyError, TypeError):
        raise EngineError(
            f"GET {_models_path(target)} of {where} is not a list of models",
            f"the server must speak OpenAI's API, {other}",
        ) from None
    if not names:
        raise EngineError(f"{where} lists no model", f"load a model into that server, {other}")
    return names


def _models_path(target: Target) -> str:
    return target.path.removesuffix("/completions") + "/models"
