"""Access control: API keys, host names of the server, and how much of one client may wait."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from roseinfer.config import ConfigError
from roseinfer.server.http.errors import RETRY_AFTER, HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.metrics.counters import Counters

#: The environment variable with the API keys, one a line, for the server and for its front ends.
KEYS = "ROSEINFER_API_KEY"


class Access:
    """Checks a request's headers.

    Args:
        keys: any of them is accepted as a bearer token; without keys, every request is.
        hosts: names accepted in the Host header besides addresses and localhost. Without hosts, a server with
            keys accepts every name: a page that attacks by DNS rebinding cannot send the key.
        salt: a secret of this server, for the numbers of clients.
    """

    def __init__(self, keys: Sequence[str], hosts: Sequence[str], salt: bytes = b"") -> None:
        self._digests = [_digest(key.encode()) for key in keys]
        self._hosts = {host.lower().rstrip(".") for host in hosts}
        self._any_host = bool(keys) and not hosts
        self._salt = salt
        self._number_at = lru_cache(1024)(lambda peer: _number(_network(peer), salt))

    def check_key(self, request: HttpRequest) -> HttpError | None:
        """Return the error for a request without a valid key, else None. Takes the same time for every wrong
        key."""
        digest = _digest(_key(request))
        matches = [hmac.compare_digest(digest, valid) for valid in self._digests]  # all, also after a match
        if not matches or any(matches):
            return None
        return HttpError(401, "the API key is missing or wrong", headers={"www-authenticate": "Bearer"})

    def client(self, request: HttpRequest, peer: str) -> int:
        """Return a number of the client, from 0 to 2**63 - 1: by its key if there are several keys, else by
        its address `peer`; of an IPv6 address the /64 network, all of which one client may have."""
        return _number(_key(request), self._salt) if len(self._digests) > 1 else self._number_at(peer)

    def cache_salt(self, request: HttpRequest, salt: str | None) -> bytes:
        """Return what requests must share to share the prefix cache: made from the key if there are several,
        and from the request's `salt`; nothing without these."""
        if salt is None and len(self._digests) <= 1:
            return b""
        who = _digest(_key(request)) if len(self._digests) > 1 else b""
        return hashlib.blake2b(who + (salt or "").encode(), digest_size=16, key=self._salt).digest()

    def check_host(self, request: HttpRequest) -> HttpError | None:
        """Return the error for a Host header that is not a name of this server, else None: otherwise pages of
        other sites could read answers by DNS rebinding."""
        host = request.headers.get(b"host")
        if host is None:  # in HTTP/1.0
            return None
        name = _without_port(host.decode("latin-1")).lower().rstrip(".")
        if self._any_host or name in self._hosts or name == "localhost" or _is_address(name):
            return None
        return HttpError(403, f"{name[:100]!r} is not a name of this server; --allowed-host adds one")


class QueueLimits:
    """At most `answers` answers, with prompts of `tokens` tokens together, wait for their first token. One
    client may have as much as is still free, so that there is always room for others (dynamic thresholds,
    Choudhury and Hahne, 1998): a single client gets half of the limit, two get a third each.
    """

    def __init__(self, counters: Counters, answers: int, tokens: int) -> None:
        self._counters, self._limits = counters, (answers, tokens)

    @property
    def full(self) -> bool:
        """True if no client can have anything more wait."""
        _, total = self._counters.waiting(0)
        return any(waiting >= limit for waiting, limit in zip(total, self._limits, strict=True))

    def check(self, client: int, answers: int, tokens: int = 0) -> None:
        """Raise HttpError, 503 or 429, if `client` cannot have `answers` more wait, with prompts of `tokens`
        together. While half is free a client's first request is taken, whatever its size."""
        of_client, total = self._counters.waiting(client)
        for limit, waiting, all_waiting, more in zip(
            self._limits, of_client, total, (answers, tokens), strict=True
        ):
            if (not waiting and 2 * all_waiting <= limit) or waiting + more <= limit - all_waiting:
                continue
            if waiting:
                message = "too many of your requests wait; ask again when some have been answered"
                raise HttpError(429, message, headers=RETRY_AFTER)
            raise HttpError(503, "too many requests wait; ask again later", headers=RETRY_AFTER)


def api_keys(file: str | None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the keys in `file` and in the environment, one a line. Raises ConfigError for a file without
    any."""
    keys = _lines(environment.get(KEYS, ""))
    if file is not None:
        try:
            from_file = _lines(Path(file).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"--api-key-file {file} cannot be read: {error}") from None
        if not from_file:
            raise ConfigError(f"--api-key-file {file} has no key; leave it out to accept every client")
        keys += from_file
    return tuple(keys)


def check_exposure(sock: socket.socket, keys: Sequence[str], insecure: bool) -> None:
    """Raise ConfigError if strangers could use a server on this address without a key."""
    host = sock.getsockname()[0]
    if not keys and not insecure and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"other machines reach {host}, and there is no key; give --api-key-file, {KEYS} or --insecure"
        )


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key(request: HttpRequest) -> bytes:
    """Return the bearer token; empty without one."""
    scheme, _, key = request.headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _number(who: bytes, salt: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(who, digest_size=8, key=salt).digest(), "little") >> 1


def _network(address: str) -> bytes:
    if ":" not in address:
        return address.encode()
    packed = ipaddress.IPv6Address(address.partition("%")[0])
    return (packed.ipv4_mapped or packed).packed[:8]


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
