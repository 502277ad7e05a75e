"""Errors of running servers that cannot be used, each with what to do about it."""

from __future__ import annotations

import http.client
import socket
import ssl

from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.records.stream import read_error

#: What OpenSSL says of certificates (X509_V_ERR_*): out of date, and made for another name or address.
_EXPIRED, _OTHER_NAME = (9, 10), (62, 64)
#: Type of the frame (SETTINGS) with which a server that speaks only HTTP/2 answers, as `repr` writes it.
_HTTP2 = "\\x04"


def no_answer(target: Target, error: Exception) -> EngineError:
    """A connection that did not come about, or brought no HTTP."""
    place = target.place
    if isinstance(error, socket.gaierror):
        return EngineError(
            f"the name {target.host} is unknown: {error.strerror}", "check the address and the DNS"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(target, error)
    if isinstance(error, ssl.SSLError) and error.reason == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
        return _speaks_only_http2(place)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return EngineError(
            f"{place} does not speak TLS as it should: {reason}", "try http:// in the address", new_run=True
        )
    if isinstance(error, TimeoutError):
        return EngineError(f"{place} does not answer in time", "check the address, or a firewall on the way")
    if isinstance(error, http.client.BadStatusLine):
        if _HTTP2 in repr(str(error)):
            return _speaks_only_http2(place)
        return EngineError(
            f"{place} does not answer in HTTP: {error}", "try https:// in the address", new_run=True
        )
    return EngineError(
        f"no server answers at {place}: {error}",
        "start it, check the address, or wait for it with --wait-ready 60",
    )


def _speaks_only_http2(place: str) -> EngineError:
    return EngineError(
        f"{place} speaks only HTTP/2, and bench speaks HTTP/1.1",
        "put a proxy before it that speaks HTTP/1.1, like nginx",
    )


def _certificate(target: Target, error: ssl.SSLCertVerificationError) -> EngineError:
    message = f"the certificate of {target.place} is not accepted: {error.verify_message}"
    if error.verify_code in _OTHER_NAME:
        return EngineError(message, "use a name in the address that the certificate is for", new_run=True)
    if error.verify_code in _EXPIRED:
        return EngineError(message, "renew the certificate, or set this machine's clock")
    return EngineError(
        message,
        "if you trust the server, name its certificate or authority with --ca-cert FILE",
        new_run=True,
    )


#: By status, what a server does with a request, and what to do about it.
_REFUSALS = {
    403: (
        "does not allow {path}",
        "check the key, the headers that a gateway wants (--header), and --served-model",
    ),
    404: (
        "has no {path}, or not this model",
        "check the path in the address, --endpoint and --served-model",
    ),
    429: ("limits how much it is asked", "lower the load, or ask for a higher limit"),
}


def refusal(target: Target, path: str, status: int, body: str) -> EngineError:
    """An answer other than 200 to `path`."""
    place, reason = target.place, read_error(body.encode())
    if status == 401:
        if "Authorization" in target.headers:
            hint = "check the key in the variable that --api-key-env names"
            return EngineError(f"{place} refuses the API key (401): {reason}", hint)
        hint = "put the key into an environment variable and name that with --api-key-env"
        return EngineError(f"{place} wants an API key (401): {reason}", hint, new_run=True)
    if status in _REFUSALS:
        complaint, hint = _REFUSALS[status]
        return EngineError(f"{place} {complaint.format(path=path)} ({status}): {reason}", hint, new_run=True)
    if status // 100 == 3:
        return EngineError(
            f"{place} redirects {path} to another address ({status}), which is not followed",
            "use that address, which is often the same with https://",
        )
    if status == 400 and "HTTPS" in body:
        return EngineError(f"{place} speaks TLS: {reason}", "write https:// in the address", new_run=True)
    hint = "see the server's log" if status >= 500 else "change the option that it names, or its own settings"
    return EngineError(f"{place} answers {status} to {path}: {reason}", hint)
