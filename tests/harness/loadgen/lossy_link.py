"""A load over a link that delays and loses packets, and when its bytes could be read.

Run as `unshare -rn python lossy_link.py LOSS [CERTIFICATE]`: it needs a network of its own. One TUN device
leads back to this host: packets to ADDRESS come back as if ADDRESS had sent them (source and destination are
exchanged, which leaves every checksum as it is). It prints, for each answer, a list of what the client read:
how many milliseconds after these bytes and all before them had been delivered it says that they came.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from time import monotonic, sleep

from harness.loadgen.load_plan import LoadPlan, Target, WireRequest
from harness.loadgen.run_load import run_load

HERE, ADDRESS, PORT = "10.9.0.1", "10.9.0.2", 8123
DELAY_S, GAP_S, CHUNKS, CHUNK_BYTES = 0.01, 0.003, 40, 80
REQUESTS, IN_FLIGHT = 40, 8


class Flow:
    """Bytes of one connection from the server that could be read, with the moment from which they could."""

    def __init__(self) -> None:
        self.begin: int | None = None
        self.complete = 0
        self.early: dict[int, int] = {}
        self.readable: list[tuple[int, float]] = []

    def delivered(self, place: int, size: int, at: float) -> None:
        """`size` bytes came, the first of which is byte `place` of the connection."""
        self.early[place] = max(size, self.early.get(place, 0))
        before = self.complete
        for first in sorted(self.early):
            if first <= self.complete:
                self.complete = max(self.complete, first + self.early.pop(first))
        if self.complete > before:
            self.readable.append((self.complete, at))

    def goodbye(self) -> None:
        """The client closed the connection: what comes after that is no answer."""
        self.delivered = lambda *_: None  # type: ignore[method-assign]

    def since(self, count: int) -> float:
        """Moment from which the first `count` bytes could be read."""
        return next(at for complete, at in self.readable if complete >= count)


def relay(tun: int, loss: float, flows: dict[int, Flow]) -> None:
    """Return each packet after DELAY_S; lose that share of those with data from the server."""
    drawn, waiting, order = random.Random(7), [], itertools.count()
    while True:
        wait = max(0.0, waiting[0][0] - monotonic()) if waiting else 1.0
        if select.select([tun], [], [], wait)[0]:
            packet = bytearray(os.read(tun, 65536))
            if packet[0] >> 4 == 4:
                packet[12:16], packet[16:20] = packet[16:20], packet[12:16]
                if packet[20:22] != PORT.to_bytes(2, "big") and packet[33] & 5:  # FIN or RST
                    flows[int.from_bytes(packet[20:22], "big")].goodbye()
                heapq.heappush(waiting, (monotonic() + DELAY_S, next(order), packet))
        while waiting and waiting[0][0] <= monotonic():
            packet = heapq.heappop(waiting)[2]
            tcp = packet[(packet[0] & 15) * 4 :]
            source, target, sequence = struct.unpack("!HHI", tcp[:8])
            data = len(tcp) - (tcp[12] >> 4) * 4
            if source == PORT:
                flow = flows[target]
                if tcp[13] & 2:  # SYN
                    flow.begin = sequence + 1
                elif data and drawn.random() < loss:
                    continue
                elif data and flow.begin is not None:
                    flow.delivered((sequence - flow.begin) % 2**32, data, monotonic())
            os.write(tun, packet)


def serve(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    """Answer one request a connection, a chunk every GAP_S, with the client's port in a header."""

    def answer(plain: socket.socket, port: int) -> None:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = context.wrap_socket(plain, server_side=True) if context else plain
        connection.recv(65536)
        head = f"HTTP/1.1 200 OK\r\nX-Port: {port}\r\nContent-Length: {CHUNKS * CHUNK_BYTES}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        for _ in range(CHUNKS):
            connection.sendall(b"x" * CHUNK_BYTES)
            sleep(GAP_S)
        connection.recv(1)

    while True:
        plain, (_, port) = listener.accept()
        threading.Thread(target=answer, args=(plain, port), daemon=True).start()


def main(loss: str, certificate: str | None = None) -> None:
    """Measure a closed loop over the link."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"lossy", 0x1001))  # TUNSETIFF: IFF_TUN | IFF_NO_PI
    for command in (f"address add {HERE}/24 dev lossy", "link set lossy up", "link set lo up"):
        subprocess.run(["ip", *command.split()], check=True)
    flows: dict[int, Flow] = defaultdict(Flow)
    threading.Thread(target=relay, args=(tun, float(loss), flows), daemon=True).start()
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    with socket.create_server((HERE, PORT)) as listener:
        threading.Thread(target=serve, args=(listener, context), daemon=True).start()
        target = Target(ADDRESS, PORT, "/", tls=context is not None, ca_cert=certificate)
        requests = [WireRequest(index, None, b"{}") for index in range(REQUESTS)]
        responses = run_load(LoadPlan(target, requests, IN_FLIGHT, timeout_s=20), start_delay_s=0.2).responses
        late_ms = []
        for response in responses:
            assert response.error is None, response.detail
            port = int(response.segments[0][1].split(b"X-Port: ")[1].split(b"\r")[0])
            if context:  # of encrypted bytes only the last ones are known to be the last
                ends = [(flows[port].complete, response.t_end or 0.0)]
            else:
                ends, count = [], 0
                for at, data in response.segments:
                    count += len(data)
                    ends.append((count, at))
            late_ms.append([1e3 * (at - flows[port].since(count)) for count, at in ends])
    print(json.dumps(late_ms))


if __name__ == "__main__":
    main(*sys.argv[1:])
