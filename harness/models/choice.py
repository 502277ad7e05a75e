"""The model of a run, by the settings and by what its engines say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from harness.errors import EngineError, UsageError
from harness.models.model_folder import ModelFolder, resolve, tokenizer_folder
from harness.models.text_tokens import ChatTemplate, load_tokenizer
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import RUNNING_SERVER
from harness.schema.settings import CommonSettings

#: The tokenizer of which nothing is known.
NO_TOKENIZER = "none"


@dataclass(frozen=True)
class ModelChoice:
    """A run's model. `folder` is None where only running servers know it; `tokenizer` is the folder of
    theirs, None where it is unknown. `vocab_size` and `max_model_len` are in tokens."""

    folder: ModelFolder | None
    tokenizer: Path | None
    vocab_size: int
    max_model_len: int

    def text_tokenizer(self) -> Tokenizer | None:
        """Tokenizer of what is sent; None where it is unknown."""
        path = self.folder.path if self.folder else self.tokenizer
        return None if path is None else load_tokenizer(path)


def choose_model(
    settings: CommonSettings, device: str, names: Sequence[str], reported_context: int | None = None
) -> ModelChoice:
    """The model that `settings` name, made or downloaded where it is not there.

    Args:
        names: The engines that are there. Where all are running servers, the folder may be None.
        reported_context: The context in tokens that running servers report.

    Raises:
        UsageError: The model or the tokenizer is not there, the context is unknown or shorter than what is
            asked for, or chats are asked for and there is no template.
    """
    folder = _folder(settings, device, names)
    vocab_size, max_model_len = _context(settings, folder, reported_context)
    if not isinstance(settings, OnlineSettings):
        return ModelChoice(folder, None, vocab_size, max_model_len)
    tokenizer = _tokenizer(settings, folder)
    if folder is None and tokenizer is not None:
        vocab_size = _vocabulary(tokenizer) or vocab_size
    if settings.endpoint == "chat" and folder is not None and set(names) - {RUNNING_SERVER}:
        _check_template(folder)
    return ModelChoice(folder, tokenizer, vocab_size, max_model_len)


def _folder(settings: CommonSettings, device: str, names: Sequence[str]) -> ModelFolder | None:
    """The model's folder; None where only a running server knows its model.

    `auto` is GPT-2's own shape on a GPU and a small one on a CPU, both with random weights.
    """
    if settings.model == "auto":
        if all(name == RUNNING_SERVER for name in names):
            return None
        return resolve("random:gpt2" if device == "cuda" else "random:gpt2-tiny")
    try:
        return resolve(settings.model)
    except UsageError as error:
        if RUNNING_SERVER in names:
            error.hint += "; a model of the running server is named with --served-model"
        raise


def _context(
    settings: CommonSettings, model: ModelFolder | None, reported_context: int | None = None
) -> tuple[int, int]:
    """Vocabulary and context of the model, or of the server of which only the settings speak."""
    max_model_len = settings.max_model_len
    if model is None:
        context = max_model_len or reported_context
        if context is None:
            raise UsageError("the running server does not report its context", "give --max-model-len")
        return settings.vocab_size, context
    if max_model_len is not None and max_model_len > model.max_model_len:
        raise UsageError(
            f"--max-model-len {max_model_len} is above the model's {model.max_model_len}",
            "give a smaller one",
        )
    return model.vocab_size, max_model_len or min(
        model.max_model_len, reported_context or model.max_model_len
    )


def _tokenizer(settings: OnlineSettings, model: ModelFolder | None) -> Path | None:
    """Folder of the tokenizer of running servers; None where it is unknown. Raises UsageError."""
    if settings.tokenizer is None:
        return model.path if model else None
    return None if settings.tokenizer == NO_TOKENIZER else tokenizer_folder(settings.tokenizer)


def _vocabulary(tokenizer: Path) -> int | None:
    """The number of its tokens; None where the folder has no tokenizer.json, or one that cannot be read."""
    with suppress(Exception):  # the package tokenizers raises nothing more special
        return Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    return None


def _check_template(folder: ModelFolder) -> None:
    """Raises UsageError where engines are to be asked for chats and the model has no template."""
    try:
        ChatTemplate(folder.path)
    except EngineError as error:
        raise UsageError(error.message, error.hint) from None
