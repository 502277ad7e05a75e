"""What the operating system knows of a connection's client."""

from __future__ import annotations

import asyncio
import fcntl
import select
import sys
import termios


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed or reset the connection."""
    return bool(_poll(transport) & (select.POLLERR | select.POLLHUP))


def sends_no_more(transport: asyncio.Transport) -> bool:
    """Whether the client has closed its sending side, even if not all it sent is read."""
    return bool(_poll(transport) & select.POLLRDHUP)


def _poll(transport: asyncio.Transport) -> int:
    poll = select.poll()
    poll.register(transport.get_extra_info("socket"), select.POLLRDHUP)
    return sum(events for _, events in poll.poll(0))


def unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the client has not received: in this process and in the socket's buffer; 0 where that buffer
    holds all of them."""
    here = transport.get_write_buffer_size()
    if not here:
        return 0
    kernel = fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
    return here + int.from_bytes(kernel, sys.byteorder)
