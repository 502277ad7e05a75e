"""Settings of servers that run already: their addresses, and what is sent to them beside requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

#: Shown and stored in place of a header's value that was given as it is.
HIDDEN = "(hidden)"
#: Begins a header's value that is the name of an environment variable.
FROM_ENV = "env:"

_LABEL = re.compile(r"^[^\s=,][^=,]{0,59}$")
_HEADER = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")


def _pairs(value: object) -> object:
    """Accept `NAME=VALUE`, or a list of them, where a mapping is meant."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, dict):
        for name, content in value.items():
            if not isinstance(content, str):
                raise ValueError(f"the value of {name} must be text")
        return value
    if not isinstance(value, list):
        raise ValueError("must be NAME=VALUE, or a list of them")
    found: dict[str, str] = {}
    for text in value:
        name, equals, content = str(text).partition("=")
        name = name.strip()
        if not equals or not name or not content.strip():
            raise ValueError(f"{text!r} is not like NAME=VALUE")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = content.strip()
    return found


def _labels(servers: dict[str, str]) -> dict[str, str]:
    for label in servers:
        if not _LABEL.match(label) or not label.isprintable():
            raise ValueError(f"{label!r} is no label: at most 60 characters, without `=` and `,`")
    return servers


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Raises ValueError, which never repeats a value: it may be a secret."""
    for name, value in headers.items():
        if not _HEADER.match(name):
            raise ValueError(f"{name!r} is not the name of a header")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"{name} is part of each request already")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {name} has a character that HTTP does not allow")
    return headers


def _hide(headers: dict[str, str]) -> dict[str, str]:
    """What is stored: the name of an environment variable, never a value."""
    return {name: value if value.startswith(FROM_ENV) else HIDDEN for name, value in headers.items()}


#: Addresses by label: `LABEL=URL`, as often as there are servers.
Servers = Annotated[dict[str, str], BeforeValidator(_pairs), AfterValidator(_labels)]
#: Values by the header's name. A value that is no `env:VARIABLE` is not stored.
Headers = Annotated[dict[str, str], BeforeValidator(_pairs), AfterValidator(_headers), PlainSerializer(_hide)]


def for_server(text: str | None, label: str, labels: Iterable[str]) -> str | None:
    """What `VALUE`, for every server, or `LABEL=VALUE,…` says for the server of that label."""
    if text is None:
        return None
    named = _named(text)
    return named.get(label) if named.keys() & set(labels) else text


def check_for_servers(option: str, text: str | None, labels: Iterable[str]) -> None:
    """Raises ValueError: a part of `LABEL=VALUE,…` has another form, or a label that no server has."""
    known = set(labels)
    if text is None or not _named(text).keys() & known:
        return
    for part in text.split(","):
        label, equals, value = part.partition("=")
        if not equals or not value.strip() or label.strip() not in known:
            raise ValueError(
                f"{option}: {part.strip()!r} in {text!r} must be LABEL=VALUE with a label of --server"
            )


def _named(text: str) -> dict[str, str]:
    """The values of `LABEL=VALUE,…` by label."""
    named = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    return {name.strip(): value.strip() for name, value in named.items()}
