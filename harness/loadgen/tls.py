"""A connection with encryption; stamps are taken when bytes are decrypted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING, cast

from harness.loadgen.connection import Connection, Owner

if TYPE_CHECKING:
    from harness.loadgen.http2 import Http2Bytes

#: How TLS names HTTP/2.
ALPN = "h2"


def trusting(ca_cert: str | None, *, http2: bool = False) -> ssl.SSLContext:
    """Checks certificates and names by the system's authorities and those in the PEM file `ca_cert`; with
    `http2`, that protocol alone is offered.

    Raises OSError where that cannot be read, ssl.SSLError where it holds no certificate.
    """
    context = ssl.create_default_context()
    if ca_cert is not None:
        context.load_verify_locations(ca_cert)
    if http2:
        context.set_alpn_protocols([ALPN])
    return context


class TlsConnection(Connection, asyncio.Protocol):
    """The loop's own transport reads, writes and encrypts."""

    def __init__(self, owner: Owner, http2: Http2Bytes | None = None) -> None:
        super().__init__(owner, http2)
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls,
        owner: Owner,
        address: str,
        port: int,
        tls: ssl.SSLContext,
        host: str,
        http2: Http2Bytes | None = None,
    ) -> TlsConnection:
        """Connect to a numeric address and check that its certificate is for `host`. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(owner, http2), address, port, ssl=tls, server_hostname=host
        )
        return connection

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.abort()

    def write(self, data: bytes) -> bool:
        self._transport.write(data)
        return self._transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Every write goes to the kernel at once, and resume_writing means that all of it is there.
        self._transport.set_write_buffer_limits(high=0)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def resume_writing(self) -> None:
        self.written()

    def data_received(self, data: bytes) -> None:
        self.received(monotonic(), data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost(exc)
