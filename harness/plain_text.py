"""Text from outside, made safe to show and to store: hidden characters are written out, secrets are not.

Servers, logs, traces, stored runs and file names may hold characters that move a terminal's cursor, set its
title, or turn the direction of a line. Each becomes the escape that JSON has for it, `\\u001b` for ESC: the
same function serves text, tables and JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

Content = TypeVar("Content")
#: Characters of one text in the files of a run.
MAX_TEXT = 100_000

#: Control characters but for tab and newline; line and paragraph separators; marks, embeddings, overrides and
#: isolates of direction (UAX #9); invisible operators, tags, surrogates and what is no character at all.
#: Joiners stay: scripts and emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)


#: Shorter values are no keys, and are found in ordinary text.
MIN_SECRET = 8
#: What is no key either: a word, as servers that want none are given, or a number. Records have such of their
#: own, which nobody could read without them.
_WORD = re.compile(r"[a-z]{,12}|[0-9]{,17}")
REDACTED = "[secret]"
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_secrets: set[str] = set()


def hide(secret: str) -> None:
    """Never show `secret` from here on: `visible` writes REDACTED instead, in text and in JSON.

    A key or a header of the user may come back in what a server answers. Values of less than MIN_SECRET
    characters are not hidden, nor words and numbers.
    """
    if len(secret) >= MIN_SECRET and not _WORD.fullmatch(secret):
        _secrets.update((secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]))


def holds_secret(name: str) -> bool:
    """Return whether the name of an environment variable says that it is a key, a token or a password."""
    return _SECRET_NAME.search(name) is not None


def hide_values(variables: Mapping[str, str]) -> None:
    """`hide` what the environment variables hold whose names say that it is a key, a token or a password."""
    for name, value in variables.items():
        if holds_secret(name) and not value.startswith("/"):
            hide(value)


def hide_options(argv: Sequence[str]) -> None:
    """`hide_values` of the options of a command line, `--name value` and `--name=value`."""
    apart = {name: value for name, value in pairwise(argv) if name[:1] == "-" != value[:1]}
    hide_values(apart | dict(argument.split("=", 1) for argument in argv if "=" in argument))


def visible(text: str) -> str:
    """The text without secrets, with every hidden character written out; tabs and newlines stay."""
    for secret in _secrets:
        text = text.replace(secret, REDACTED)
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def one_line(text: str, limit: int | None = None) -> str:
    """`visible` with every run of blanks and newlines as one blank, cut to `limit` characters."""
    line = visible(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…"


def visible_content(content: Content) -> Content:
    """Return the content of a JSON file with every text and every key `visible`.

    Raises ValueError where a text is longer than any that is shown.
    """
    if isinstance(content, str):
        if len(content) > MAX_TEXT:
            raise ValueError(f"a text has over {MAX_TEXT:,} characters")
        return visible(content)  # type: ignore[return-value]
    if isinstance(content, list):
        return [visible_content(item) for item in content]  # type: ignore[return-value]
    if isinstance(content, dict):
        return {visible(key): visible_content(item) for key, item in content.items()}  # type: ignore[return-value]
    return content
