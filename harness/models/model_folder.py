"""Provides a model as a local folder in Hugging Face layout that every engine can open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tokenizers import Tokenizer

import rosemodels
from harness.errors import EngineError, UsageError
from harness.models.text_tokens import ChatTemplate, load_tokenizer
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import RUNNING_SERVER
from harness.schema.settings import UNKNOWN_CONTEXT, CommonSettings
from rosemodels.store import RANDOM

#: Number of experts in config.json: of Qwen, of Mixtral and gpt-oss, of DeepSeek, of Ernie.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
#: Without weights and their index.
_TOKENIZER_FILES = [
    *("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("config.json", "generation_config.json", "chat_template*"),
]


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine. `name` is what the user gave, `served_name` its name in requests.

    `vocab_size` and `max_model_len` are in tokens, from config.json; `tokenizer`: whether the folder has one;
    `experts`: of a layer, by config.json, 0 without any.
    """

    path: Path
    name: str
    served_name: str
    vocab_size: int
    max_model_len: int
    tokenizer: bool
    experts: int = 0

    @property
    def trained(self) -> bool:
        """The weights were trained by somebody, as far as the name says."""
        return not self.name.startswith(RANDOM)


def resolve(model: str) -> ModelFolder:
    """The folder of a model: a name of rosemodels (created once in the cache), a local folder, or a hub id.

    Raises UsageError if there is no such model, or its config is not that of a decoder.
    """
    if (named := _named(model)) is not None:
        return _describe(named, model, model.replace(":", "-"))
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return _describe(folder.resolve(), model, folder.resolve().name)
    if folder.is_dir():
        raise UsageError(f"{model} has no config.json", "give a folder in Hugging Face layout")
    if model.startswith(("/", "./", "../", "~")):
        raise UsageError(f"there is no folder {model}", "give a folder in Hugging Face layout")
    return _describe(_download(model), model, model)


def tokenizer_folder(name: str) -> Path:
    """The folder of a tokenizer: that of a named model, a local folder, or a hub id, without its weights.

    Raises UsageError if there is no such folder, or it has no tokenizer.json.
    """
    folder = _named(name)
    if folder is None:
        local = Path(name).expanduser()
        if not local.is_dir() and name.startswith(("/", "./", "../", "~")):
            raise UsageError(f"there is no folder {name}", "give the folder of a tokenizer")
        folder = local.resolve() if local.is_dir() else _download(name, _TOKENIZER_FILES)
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"{name} has no tokenizer.json", "give another --tokenizer, or none: then the server counts"
        )
    return folder


def _named(name: str) -> Path | None:
    try:
        return rosemodels.folder(name)
    except rosemodels.ModelError as error:
        raise UsageError(str(error), error.hint) from error


def _download(model: str, files: list[str] = _HUB_FILES) -> Path:
    from huggingface_hub import snapshot_download  # half a second to import

    try:
        return Path(snapshot_download(model, allow_patterns=files))
    except Exception as error:  # the client raises a dozen unrelated types; the user needs one sentence
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"{model!r} is neither a named model nor a local folder, and cannot be downloaded: {reason}",
            f"{_meant(model)}check the id and the network, or give a local folder in Hugging Face layout",
        ) from error


def _meant(model: str) -> str:
    """`did you mean smollm2-135m? ` of a name that is nearly that of a named model; else empty."""
    names = {name.removeprefix(RANDOM): name for name in rosemodels.names()}
    similar = get_close_matches(model.rpartition("/")[2].removeprefix(RANDOM).lower(), names, 1, cutoff=0.75)
    return f"did you mean {names[similar[0]]}? " if similar else ""


def _describe(path: Path, name: str, served_name: str) -> ModelFolder:
    try:
        config = json.loads((path / "config.json").read_text())
        config = config.get("text_config", config)
        length = config.get("max_position_embeddings") or config["n_positions"]
        vocab_size, max_model_len = int(config["vocab_size"]), int(length)
        numbers = [config.get(name) for name in _EXPERTS]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path / 'config.json'} cannot be read: {error}", "give a complete model folder"
        ) from None
    except KeyError as error:
        raise UsageError(
            f"{path / 'config.json'} has no {error.args[0]}", "give the folder of a decoder model"
        ) from None
    experts = max((number for number in numbers if isinstance(number, int)), default=0)
    tokenizer = (path / "tokenizer.json").is_file() or (path / "tokenizer.model").is_file()
    tokenizer = tokenizer or all((path / file).is_file() for file in ("vocab.json", "merges.txt"))
    return ModelFolder(path, name, served_name, vocab_size, max_model_len, tokenizer, experts)


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
    if folder is None and tokenizer is not None and (of_server := load_tokenizer(tokenizer)) is not None:
        vocab_size = of_server.get_vocab_size()
    if settings.endpoint != "completions" and folder is not None and set(names) - {RUNNING_SERVER}:
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
        return settings.vocab_size, max_model_len or reported_context or UNKNOWN_CONTEXT
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


def _check_template(folder: ModelFolder) -> None:
    """Raises UsageError where engines are to be asked for chats and the model has no template."""
    try:
        ChatTemplate(folder.path)
    except EngineError as error:
        raise UsageError(error.message, error.hint) from None
