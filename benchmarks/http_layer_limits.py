"""What speaks HTTP, attacked: roseinfer's own and kept servers, in front of an engine that computes nothing.

    python -m benchmarks.http_layer_limits [NAME…]    forms of HTTP, departures, ends and deadlines
    python -m benchmarks.http_layer_limits --floods [NAME…]    memory, and how long others wait

The second is a measurement: run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from benchmarks.flood import POST, WAYS, body, flood
from benchmarks.http_cases import CASES
from benchmarks.http_conformance import violation
from benchmarks.http_layers import NAMES, serving

#: Ways of `benchmarks.flood`, with how many connections, and for how long (s).
FLOODS, CONNECTIONS, SECONDS = (
    ("half a body", "trailers", "pipelined requests", "pipelined bodies"),
    100,
    3.0,
)
#: Clients that leave; seconds that a server has to notice it, and to close what does not go on.
LEAVING, TO_NOTICE, TO_CLOSE = 20, 15.0, 75.0
STEP_MS = 20.0
UNFINISHED = {
    "half a head": b"GET / HTTP/1.1\r\nhost: local",
    "half a body": POST + b"content-length: 99\r\n\r\n{",
}


def ask(port: int, tokens: int, *, stream: bool) -> socket.socket:
    """A client that waits for so many tokens."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    asked = {"prompt": [1], "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    client.sendall(body(json.dumps(asked).encode()))
    return client


def in_flight(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=60) as page:
        load: dict[str, int] = json.load(page)["load"]
    return load["inflight"]


def forms(port: int) -> int:
    """How many forms of HTTP are answered as the RFCs say."""
    with ThreadPoolExecutor(16) as pool:
        return sum(not wrong for wrong in pool.map(lambda case: violation(port, case), CASES))


def departures(port: int, *, stream: bool) -> str:
    """Seconds until nothing is computed any more for clients that have left."""
    clients = [ask(port, 900, stream=stream) for _ in range(LEAVING)]
    while in_flight(port) < LEAVING:
        time.sleep(0.05)
    for client in clients:
        client.close()
    start = time.monotonic()
    while in_flight(port) and time.monotonic() - start < TO_NOTICE:
        time.sleep(0.05)
    seconds = time.monotonic() - start
    return f"{seconds:.1f} s" if seconds < TO_NOTICE else f"not in {TO_NOTICE:.0f} s"


def half_closed(port: int, *, stream: bool) -> bool:
    """Whether a client that sends no more gets its answer."""
    with ask(port, 20, stream=stream) as client, client.makefile("rb") as answer:
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            return b'"finish_reason":"length"' in answer.read()
    return False


def closed_after(port: int, sent: bytes) -> str:
    """Seconds until a connection is closed on which nothing follows."""
    with socket.create_connection(("127.0.0.1", port), timeout=TO_CLOSE) as client:
        client.sendall(sent)
        start = time.monotonic()
        try:
            while client.recv(4096):
                pass
        except TimeoutError:
            return f"not in {TO_CLOSE:.0f} s"
        except OSError:
            pass
        return f"{time.monotonic() - start:.0f} s"


def limits(name: str) -> str:
    """A row of the table."""
    with serving(name, STEP_MS) as (port, _), ThreadPoolExecutor() as pool:
        waiting = [pool.submit(closed_after, port, sent) for sent in UNFINISHED.values()]
        held = forms(port)
        left = [departures(port, stream=stream) for stream in (True, False)]
        ends = ["yes" if half_closed(port, stream=stream) else "no" for stream in (True, False)]
        closed = [each.result() for each in waiting]
    return f"| {name} | {held} | {', '.join(left)} | {', '.join(ends)} | {', '.join(closed)} |"


def floods(name: str) -> str:
    """A row of the table."""
    risen, waited = [], []
    for way in FLOODS:
        with serving(name, STEP_MS) as (port, server):
            try:
                seen = flood(port, server, WAYS[way], CONNECTIONS, SECONDS)
            except (OSError, AssertionError):  # /health was not answered
                risen.append("–")
                waited.append("no answer")
                continue
        risen.append(f"{max(seen.peak):.0f}")
        waited.append(f"{seen.p99():.0f}")
    return f"| {name} | {', '.join(risen)} | {', '.join(waited)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--floods", action="store_true")
    parser.add_argument("names", nargs="*", default=NAMES)
    settings = parser.parse_args()
    if settings.floods:
        print(f"| server | MiB above: {', '.join(FLOODS)} | /health p99, ms |\n|---|---|---|")
    else:
        print(
            f"| server | forms, of {len(CASES)} | streams, whole answers ended | answers when half-closed |"
            f" {', '.join(UNFINISHED)} closed |\n|---|---|---|---|---|"
        )
    for name in settings.names:
        print(floods(name) if settings.floods else limits(name), flush=True)


if __name__ == "__main__":
    main()
