"""The running servers of a run: where they are, and how long their context is."""

from __future__ import annotations

from collections.abc import Mapping

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine
from harness.engines.running.address import Address
from harness.engines.running.model_list import listing
from harness.errors import EngineError, UsageError
from harness.schema.online_settings import OnlineSettings


def address_of(settings: OnlineSettings, label: str | None) -> Address | None:
    """Where the running server of that label is, and how it is asked; None of an engine started here.

    Raises:
        UsageError: The address is that of another endpoint than requests go to.
    """
    if label is None:
        return None
    address = Address(
        settings.servers[label],
        settings.of_server(settings.api_key_env, label),
        settings.of_server(settings.served_model, label),
        settings.header,
        settings.ca_cert,
        settings.wait_ready,
    )
    if settings.endpoint != "chat" and address.names_chats:
        raise UsageError(f"the address of {label} is that of chats", "add --endpoint chat")
    return address


def reported_context(settings: OnlineSettings, engines: Mapping[str, Engine]) -> int | None:
    """The shortest context in tokens that a running server reports; None where none does.

    Raises:
        EngineError: A server does not answer, and either nothing else says how long its context is, or
            --wait-ready has passed already.
        UsageError: A server lists several models and none is chosen, it lacks the one that is, or its context
            is shorter than --max-model-len or unknown with the model.
    """
    known = []
    for label, engine in engines.items():
        if not isinstance(engine, OpenAI):
            continue
        try:
            model = engine.model
        except EngineError:
            unknown = settings.max_model_len is None and settings.model == "auto"
            if unknown or settings.wait_ready:  # it had its time to get ready
                raise
            continue
        context = model.max_model_len
        if context is None and model.instead and settings.max_model_len is None and settings.model == "auto":
            raise UsageError(
                f"{label} does not list the model {model.name!r}, so its context is not known; it lists "
                f"{listing(model.instead)}",
                "give --max-model-len, or one of these as --served-model",
            )
        if context is None:
            continue
        if (settings.max_model_len or 0) > context:
            raise UsageError(
                f"--max-model-len {settings.max_model_len} is above the {context} of {label}",
                "give a smaller one",
            )
        known.append(context)
    return min(known, default=None)
