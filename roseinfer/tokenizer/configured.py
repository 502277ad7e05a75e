"""The tokens that tokenizer_config.json and special_tokens_map.json name, read as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

#: transformers adds these first, in this order.
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """The settings of the tokenizer in `folder`; the map counts only where they list no added tokens. Raises
    OSError, ValueError or TypeError."""
    config = _read(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _read(folder / "special_tokens_map.json")
    return config


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The text of each special token that has a name (`bos_token`, …). Raises KeyError."""
    return {name: _content(token) for name, token in _named(config).items()}


def add_configured(tokenizer: FastTokenizer, config: dict[str, Any]) -> None:
    """Add the tokens of `config` that `tokenizer` does not have. Raises KeyError, ValueError or TypeError."""
    listed, named_tokens = config.get("added_tokens_decoder") or {}, _named(config)
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    tokens = [listed[id] for id in sorted(listed, key=int)]
    special = [*named_tokens.values(), *([] if isinstance(extra, dict) else extra)]
    names = {*map(_content, special)}
    missing: dict[str, AddedToken] = {}
    present = {added.content for added in tokenizer.get_added_tokens_decoder().values()}
    for token in (*tokens, *special):
        content = _content(token)
        flags = {flag: token[flag] for flag in _FLAGS if flag in token} if isinstance(token, dict) else {}
        if content in names:
            flags["special"] = True
        if content not in present:
            missing.setdefault(content, AddedToken(content, **flags))
    tokenizer.add_tokens([*missing.values()])


def _named(config: dict[str, Any]) -> dict[str, Any]:
    extra = config.get("extra_special_tokens")
    every = config | (extra if isinstance(extra, dict) else {})
    names = dict.fromkeys(name for name in (*_NAMES, *every) if name.endswith("_token"))
    return {name: every[name] for name in names if isinstance(every.get(name), str | dict)}


def _content(token: str | dict[str, Any]) -> str:
    """A special token is a text, or an object with its text and how it is matched."""
    return token if isinstance(token, str) else token["content"]


def _read(file: Path) -> dict[str, Any]:
    read = json.loads(file.read_text()) if file.is_file() else {}
    if not isinstance(read, dict):
        raise TypeError(f"{file.name} is not an object")
    return read
