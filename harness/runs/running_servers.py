"""The running servers of a run: where they are, how long their context is, which tokenizer is theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineVariant
from harness.engines.registry import get_engine_variant
from harness.engines.running.address import Address
from harness.errors import EngineError, UsageError
from harness.models.model_folder import ModelFolder, tokenizer_folder
from harness.schema.common_settings import CommonSettings
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.online_settings import OnlineSettings

#: The tokenizer of which nothing is known.
NO_TOKENIZER = "none"


def named_variants(settings: CommonSettings) -> Iterator[EngineVariant]:
    """The engines as they are named; each running server is one. Raises UsageError."""
    for ref in settings.engines:
        engine_variant = get_engine_variant(ref)
        if ref.name == RUNNING_SERVER and isinstance(settings, OnlineSettings):
            for label in settings.servers:
                yield replace(engine_variant, label=label, server=label)
        else:
            yield engine_variant


def address_of(settings: OnlineSettings, label: str | None) -> Address | None:
    """Where the running server of that label is, and how it is asked; None of an engine started here."""
    if label is None:
        return None
    return Address(
        settings.servers[label],
        settings.of_server(settings.api_key_env, label),
        settings.of_server(settings.served_model, label),
        settings.header,
        settings.ca_cert,
        settings.wait_ready,
    )


def reported_context(settings: OnlineSettings, engines: Mapping[str, Engine]) -> int | None:
    """The shortest context in tokens that a running server reports; None where none does.

    Raises:
        EngineError: A server does not answer, and nothing else says how long its context is, or it was
            waited for.
        UsageError: A server lists several models and none is chosen, or its context is shorter than
            --max-model-len.
    """
    known = []
    for label, engine in engines.items():
        if not isinstance(engine, OpenAI):
            continue
        try:
            context = engine.model.max_model_len
        except EngineError:
            unknown = settings.max_model_len is None and settings.model == "auto"
            if unknown or settings.wait_ready:  # it was waited for once
                raise
            continue
        if context is None:
            continue
        if (settings.max_model_len or 0) > context:
            raise UsageError(
                f"--max-model-len {settings.max_model_len} is above the {context} of {label}",
                "give a smaller one",
            )
        known.append(context)
    return min(known, default=None)


def tokenizer_of(settings: OnlineSettings, model: ModelFolder | None) -> Path | None:
    """Folder of the tokenizer of running servers; None where it is unknown. Raises UsageError."""
    if settings.tokenizer is None:
        return model.path if model else None
    return None if settings.tokenizer == NO_TOKENIZER else tokenizer_folder(settings.tokenizer)


def vocabulary(tokenizer: Path) -> int | None:
    """The number of its tokens; None where the folder has no tokenizer.json, or one that cannot be read."""
    with suppress(Exception):  # the package tokenizers raises nothing more special
        return Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    return None
