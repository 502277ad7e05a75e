"""The address of a running server, with the key and headers that it is asked with."""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from harness.engines.base import COMPLETIONS, PATHS, from_environment, variable
from harness.errors import UsageError
from harness.loadgen.load_plan import ANSWER_S, Proxy, Target
from harness.loadgen.tls import trusting
from harness.plain_text import hide
from harness.schema.online_settings import Endpoint
from harness.schema.setting_types import HIDDEN

#: Of Anthropic's API, which every request names.
ANTHROPIC_VERSION = "2023-06-01"
#: What is no secret.
_QUERY = re.compile(r"api-version=[A-Za-z0-9.-]+")


@dataclass(frozen=True)
class Address:
    """A running server as the user names it.

    `url` is `http://host:port`, with or without `/v1` or another path before it, or the whole address of an
    endpoint; of a query only `api-version` is taken, as Azure needs it. `api_key_env` is the variable that
    holds its key, `model` the model's name in requests, None for the only one that it lists. `wait_s` is how
    long it may take until it answers, `answer_s` how long each answer may take. `others` are more
    addresses of the same server. `pid` is its main process, if that is one of this machine and known.
    """

    url: str
    api_key_env: str | None = None
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_cert: Path | None = None
    wait_s: float = 0.0
    answer_s: float = ANSWER_S
    endpoint: Endpoint = "completions"
    others: tuple[str, ...] = ()
    pid: int | None = None

    @property
    def named_endpoint(self) -> Endpoint | None:
        """The endpoint of which the URL is the whole address; None: of none."""
        path = self._parts.path.rstrip("/")
        return next((endpoint for endpoint, end in PATHS.items() if path.endswith(end)), None)

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url if "://" in self.url else f"http://{self.url}")

    def target(self) -> Target:
        """Return the target of completions.

        Raises:
            UsageError: The address, a variable or the file of certificates cannot be used.
        """
        parts = self._parts
        hint = "write it like http://127.0.0.1:8000"
        try:
            port = parts.port
        except ValueError:
            raise UsageError(
                f"{self.url} is not the address of a server: its port is no number", hint
            ) from None
        if parts.username or parts.password:
            raise UsageError(
                "the address has a user or password in it, which would stand in the records",
                "send it with --header Authorization=env:VARIABLE",
            )
        if parts.query and not _QUERY.fullmatch(parts.query):
            raise UsageError(
                "the query of the address would stand in the records: only api-version is supported",
                "send a key with --header NAME=env:VARIABLE",
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.url} is not the address of a server", hint)
        headers = {name: _value(name, value) for name, value in self.headers.items()}
        if self.api_key_env is not None:
            key = variable("--api-key-env", self.api_key_env)
            name, scheme = ("x-api-key", "") if self.endpoint == "messages" else ("Authorization", "Bearer ")
            headers[name] = scheme + key
        if self.endpoint == "messages":
            headers = {"anthropic-version": ANTHROPIC_VERSION, **headers}
        for value in headers.values():
            hide(value)
            hide(value.rpartition(" ")[2])  # a key after `Bearer`
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/")
        if (named := self.named_endpoint) is not None:  # of an API that need not be under /v1
            path = path.removesuffix(PATHS[named]) + PATHS["completions"]
        else:
            path = path.removesuffix("/v1") + COMPLETIONS
        path += f"?{parts.query}" if parts.query else ""
        return Target(
            parts.hostname,
            port or (443 if tls else 80),
            path,
            headers,
            tls,
            self._certificates(tls),
            self.answer_s,
            proxy_of(parts.scheme, parts.hostname),
            tuple(replace(self, url=url, others=()).target() for url in self.others),
        )

    def _certificates(self, tls: bool) -> str | None:
        if self.ca_cert is None or not tls:
            return None
        file = self.ca_cert.expanduser().resolve()
        try:
            trusting(str(file))
        except (OSError, ssl.SSLError) as error:
            reason = "holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise UsageError(f"--ca-cert {self.ca_cert}: {reason}", "name a PEM file") from None
        return str(file)


def proxy_of(scheme: str, host: str) -> Proxy | None:
    """Return the proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names for a host; None for this machine, and
    for the hosts in NO_PROXY. Raises UsageError."""
    proxies = getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    if proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise UsageError(
            f"the proxy for {scheme}:// in the environment is not one like http://HOST:PORT",
            f"correct {scheme.upper()}_PROXY, or put {host} into NO_PROXY",
        )
    headers = {}
    if parts.password:
        hide(parts.password)
        user = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    return Proxy(parts.hostname, parts.port or 80, headers)


def _value(name: str, value: str) -> str:
    if value == HIDDEN:
        raise UsageError(
            f"the value of the header {name} is not kept in a run's folder",
            f"start a new run, with --header {name}=env:VARIABLE if it is to be resumed",
        )
    return str(from_environment(f"--header {name}", value))
