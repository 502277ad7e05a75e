"""The server's socket: bound before the engine loads, listening once it can answer."""

from __future__ import annotations

import socket

from roseinfer.config import ConfigError

BACKLOG = 4096


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises ConfigError when it cannot be had."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _refused(host, port, error) from None
    return sock


def listen(sock: socket.socket) -> str:
    """Let clients connect. Returns the URL. Raises ConfigError when another process was first."""
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise _refused(host, port, error) from None
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refused(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host} port {port}: {error.strerror}; choose another --host or --port"
    )
