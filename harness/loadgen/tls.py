"""A connection with encryption; stamps are taken when bytes are decrypted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import monotonic
from typing import cast

from harness.loadgen.connection import Connection, Owner
from harness.loadgen.load_plan import Proxy, Target


def trusting(ca_cert: str | None) -> ssl.SSLContext:
    """Check certificates and names by the system's authorities and those in the PEM file `ca_cert`.

    Raises OSError where that cannot be read, ssl.SSLError where it holds no certificate.
    """
    context = ssl.create_default_context()
    if ca_cert is not None:
        context.load_verify_locations(ca_cert)
    return context


async def _open_tunnel(sock: socket.socket, target: Target, proxy: Proxy) -> None:
    """Ask a proxy for a connection to the target. Raises OSError if it gives none."""
    loop = asyncio.get_running_loop()
    lines = [f"CONNECT {target.place} HTTP/1.1", f"Host: {target.place}"]
    lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
    await loop.sock_sendall(sock, "\r\n".join([*lines, "", ""]).encode("ascii"))
    answer = b""  # the server says nothing before it is spoken to, so all that comes is the proxy's
    while b"\r\n\r\n" not in answer and (piece := await loop.sock_recv(sock, 4096)):
        answer += piece
    status = answer.partition(b"\r\n")[0].decode("latin-1")
    if not status.partition(" ")[2].startswith("2"):
        raise OSError(f"the proxy {proxy.host}:{proxy.port} gives no connection: {status[:100]}")


class TlsConnection(Connection, asyncio.Protocol):
    """The loop's own transport reads, writes and encrypts."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._transport: asyncio.Transport

    @classmethod
    async def open(cls, owner: Owner, address: str, target: Target, tls: ssl.SSLContext) -> TlsConnection:
        """Connect to a numeric address of the target, or through that of its proxy, and check that the
        certificate is for the target's host. Raises OSError."""
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, (address, target.peer[1]))
            if target.proxy is not None:
                await _open_tunnel(sock, target, target.proxy)
            _, connection = await loop.create_connection(
                lambda: cls(owner), sock=sock, ssl=tls, server_hostname=target.host
            )
        except BaseException:
            sock.close()
            raise
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
