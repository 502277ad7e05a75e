"""Finds the folder of a model's files."""

from __future__ import annotations

from pathlib import Path

import rosemodels
from roseinfer.config import ConfigError


def model_folder(model: str) -> Path:
    """The folder of a model: a name of rosemodels, a local folder, or a hub id.

    Raises ConfigError when there is no such model.
    """
    try:
        named = rosemodels.folder(model)
    except rosemodels.ModelError as error:
        raise ConfigError(f"{error}; {error.hint}") from error
    if named is not None:
        return named
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ConfigError(f"{model} has no config.json; give a folder in Hugging Face layout")
    from huggingface_hub import snapshot_download  # half a second to import

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt"]))
    except Exception as error:  # the hub client raises a dozen kinds; the user needs one sentence
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no local folder {model!r}, and the hub did not give it: {reason}") from error
