"""Carries packets between the network namespaces of one machine, late by what the links of its hosts cost.

    python router.py DEVICE=ADDRESS…

Makes the TUN devices, writes `ready`, and reads lines: `ADDRESS LEAVING_MS ARRIVING_MS` says how long a
packet needs from and to a host, `ADDRESS cut` that none does. Ends with its standard input. Linux, root.
"""

from __future__ import annotations

import fcntl
import heapq
import math
import os
import select
import socket
import struct
import sys
from contextlib import suppress
from time import monotonic

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
#: Of an IPv4 packet.
SOURCE, DESTINATION = slice(12, 16), slice(16, 20)
MOST_BYTES = 1 << 16


def made(device: str) -> int:
    """A file of which each read and write is a packet."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    return file


def main() -> None:
    files = {}
    for word in sys.argv[1:]:
        device, address = word.split("=")
        files[socket.inet_aton(address)] = made(device)
    leaving = dict.fromkeys(files, 0.0)
    arriving = dict.fromkeys(files, 0.0)
    waiting: list[tuple[float, int, bytes]] = []
    count, commands = 0, b""
    os.write(1, b"ready\n")
    while True:
        rest = max(0.0, waiting[0][0] - monotonic()) if waiting else None
        for file in select.select([0, *files.values()], [], [], rest)[0]:
            if file == 0:
                if not (more := os.read(0, 4096)):
                    return
                *lines, commands = (commands + more).split(b"\n")
                for line in lines:
                    address, *delays = line.decode().split()
                    both = (math.inf, math.inf) if delays == ["cut"] else [float(ms) / 1e3 for ms in delays]
                    leaving[socket.inet_aton(address)], arriving[socket.inet_aton(address)] = both
                continue
            with suppress(BlockingIOError):
                while packet := os.read(file, MOST_BYTES):
                    late = leaving.get(packet[SOURCE], math.inf) + arriving.get(packet[DESTINATION], math.inf)
                    if late < math.inf:
                        heapq.heappush(waiting, (monotonic() + late, count := count + 1, packet))
        while waiting and waiting[0][0] <= monotonic():
            packet = heapq.heappop(waiting)[2]
            with suppress(BlockingIOError):  # a full queue loses packets
                os.write(files[packet[DESTINATION]], packet)


if __name__ == "__main__":
    main()
