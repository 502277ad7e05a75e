"""Provides a model as a local folder in Hugging Face layout that every engine can open."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import rosemodels
from harness.errors import UsageError
from rosemodels.store import RANDOM

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
#: Without weights and their index.
_TOKENIZER_FILES = [
    *("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("config.json", "generation_config.json", "chat_template*"),
]


@dataclass(frozen=True)
class ModelFolder:
    """A model on this machine. `name` is what the user gave, `served_name` its name in requests.

    `vocab_size` and `max_model_len` are in tokens, from config.json; `tokenizer`: whether the folder has one.
    """

    path: Path
    name: str
    served_name: str
    vocab_size: int
    max_model_len: int
    tokenizer: bool

    @property
    def trained(self) -> bool:
        """The weights were trained by somebody, as far as the name says."""
        return not self.name.startswith(RANDOM)


def resolve(model: str, cache: Path = rosemodels.CACHE) -> ModelFolder:
    """The folder of a model: a name of rosemodels (created once in `cache`), a local folder, or a hub id.

    Raises UsageError if there is no such model, or its config is not that of a decoder.
    """
    named = _named(model, cache)
    if named is not None:
        return _describe(named, model, model.replace(":", "-"))
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return _describe(folder.resolve(), model, folder.resolve().name)
    if folder.is_dir():
        raise UsageError(f"{model} has no config.json", "give a folder in Hugging Face layout")
    if model.startswith(("/", "./", "../", "~")):
        raise UsageError(f"there is no folder {model}", "give a folder in Hugging Face layout")
    return _describe(_download(model), model, model)


def tokenizer_folder(name: str, cache: Path = rosemodels.CACHE) -> Path:
    """The folder of a tokenizer: that of a named model, a local folder, or a hub id, without its weights.

    Raises UsageError if there is no such folder, or it has no tokenizer.json.
    """
    folder = _named(name, cache)
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


def _named(name: str, cache: Path) -> Path | None:
    try:
        return rosemodels.folder(name, cache)
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
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path / 'config.json'} cannot be read: {error}", "give a complete model folder"
        ) from None
    except KeyError as error:
        raise UsageError(
            f"{path / 'config.json'} has no {error.args[0]}", "give the folder of a decoder model"
        ) from None
    tokenizer = (path / "tokenizer.json").is_file() or (path / "tokenizer.model").is_file()
    tokenizer = tokenizer or all((path / file).is_file() for file in ("vocab.json", "merges.txt"))
    return ModelFolder(path, name, served_name, vocab_size, max_model_len, tokenizer)
