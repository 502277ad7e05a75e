"""A connection with encryption; stamps are taken when bytes are decrypted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic
from typing import cast

from harness.loadgen.connection import Connection, Owner


def trusting(ca_cert: str | None) -> ssl.SSLContext:
    """Check certificates and names by the system's authorities and those in the PEM file `ca_cert`.

    Raises OSError where that cannot be read, ssl.SSLError where it holds no certificate.
    """
    context = ssl.create_default_context()
    if ca_cert is not None:
        context.load_verify_locations(ca_cert)
    return context


class TlsConnection(Connection, asyncio.Protocol):
    """The loop's own transport reads, writes and encrypts."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls,
        owner: Owner,
        address: str,
        port: int,
        tls: ssl.SSLContext,
        host: str,
    ) -> TlsConnection:
        """Connect to a numeric address and check that its certificate is for `host`. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(owner), address, port, ssl=tls, server_hostname=host
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
