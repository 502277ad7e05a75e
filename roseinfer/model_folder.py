"""Finds the folder of a model's files."""

from __future__ import annotations

from pathlib import Path

import rosemodels
from roseinfer.config import ConfigError

#: What is fetched of a repository: configs, weights, tokenizers and chat templates.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


def model_folder(model: str) -> Path:
    """The folder of a model: a name of rosemodels, a local folder, or a hub id.

    Raises ConfigError when there is no such model.
    """
    try:
        folder = rosemodels.folder(model)
    except rosemodels.ModelError as error:
        raise ConfigError(f"{error}; {error.hint}") from error
    if folder is not None:
        return folder
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ConfigError(f"{model} has no config.json; give a folder in Hugging Face layout")
    from huggingface_hub import snapshot_download  # half a second to import

    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except Exception as error:  # the hub client raises a dozen kinds; the user needs one sentence
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"no local folder {model!r}, and the hub did not give it: {reason}") from error
