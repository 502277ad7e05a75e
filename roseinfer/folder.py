"""Where a model's files are."""

from __future__ import annotations

from pathlib import Path

from roseinfer.config import ConfigError

#: Prefix of models that have no files: a named shape with seeded random weights.
RANDOM = "random:"


def model_folder(model: str) -> Path | None:
    """A local folder, or a download of a hub id where huggingface_hub is installed; None for `random:NAME`.

    Raises ConfigError when there is no such model.
    """
    if model.startswith(RANDOM):
        return None
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise ConfigError(f"{model} has no config.json; give a folder in Hugging Face layout")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ConfigError(
            f"{model!r} is neither random:NAME nor a local folder; for hub ids install rosebench[hub]"
        ) from None
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*.txt"]))
    except Exception as error:  # the hub client raises a dozen kinds; the user needs one sentence
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no local folder {model!r}, and the hub did not give it: {reason}") from error
