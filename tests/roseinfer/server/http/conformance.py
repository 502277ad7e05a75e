"""A check of a server's answers to HTTP/1.1 in unusual and broken forms, against RFC 9112 and RFC 9110."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.roseinfer.server.http.cases import Case, Expected

LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-last: 1\r\nconnection: close\r\n\r\n"
#: Seconds without a byte after which a server counts as hanging.
PATIENCE = 5.0


@dataclass
class Answers:
    """A server's reaction to a case: the statuses of its answers, and how the connection ended."""

    statuses: list[int] = field(default_factory=list)
    continued: bool = False
    hangs: bool = False
    malformed: str = ""
    without_date: bool = False


class _OpenFile(io.BytesIO):
    """A file that stays open when one response has been read from it."""

    def close(self) -> None:
        pass


class _Socket:
    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def makefile(self, mode: str) -> io.BytesIO:
        return self._file


def exchange(port: int, pieces: Sequence[bytes], patience: float = PATIENCE) -> tuple[bytes, bool]:
    """Send `pieces`. Returns all that the server sends until it closes, and whether it never closed."""
    data, hangs = b"", False
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                client.sendall(piece)
        except OSError:
            pass  # it has refused to read on; what it said before may still be there
        try:
            while more := client.recv(1 << 16):
                data += more
        except TimeoutError:
            hangs = True
        except OSError:
            pass
    return data, hangs


def read(data: bytes, hangs: bool, method: str = "GET") -> Answers:
    """Parse the responses in `data`, of which the first answers `method`."""
    answers, file = Answers(hangs=hangs), _OpenFile(data)
    answers.continued = data.startswith(b"HTTP/1.1 100 ")
    while file.tell() < len(data):
        response = http.client.HTTPResponse(_Socket(file), method=method)  # type: ignore[arg-type]
        try:
            response.begin()
            response.read()
        except (http.client.HTTPException, OSError, ValueError) as error:
            answers.malformed = repr(error)
            break
        answers.statuses.append(response.status)
        answers.without_date |= response.status == 200 and response.getheader("date") is None
        method = "GET"
    return answers


def judge(case: Case, answers: Answers) -> str:
    """Return the faults of the answers; empty if there is none."""
    statuses = answers.statuses
    served = [*statuses[:-1], 0][: case.answers] == [200] * case.answers and len(statuses) == case.answers + 1
    refused = len(statuses) <= 1 and all(400 <= status < 600 for status in statuses)
    good = {
        Expected.SERVED: served and statuses[-1] == 200,
        Expected.REFUSED: refused,
        Expected.ENDED: len(statuses) <= case.answers + ("nonsense" in case.name),
        Expected.ERROR: len(statuses) == 2 and 400 <= statuses[0] < 500 and statuses[1] == 200,
        Expected.EITHER: refused or (len(statuses) == case.answers + 1 and statuses[-1] == 200),
    }[case.expected]
    wrong = [] if good else [f"answers {statuses}, must be {case.expected.value}"]
    if answers.hangs:
        wrong.append(f"nothing for {PATIENCE:.0f} s, and the connection is open")
    if answers.malformed:
        wrong.append(f"no HTTP: {answers.malformed}")
    if any(status == 500 for status in statuses):
        wrong.append("500")
    if answers.continued and "HTTP/1.0" in case.name:
        wrong.append("100 Continue to HTTP/1.0")
    if answers.without_date:
        wrong.append("no Date")
    return "; ".join(wrong)


def violation(port: int, case: Case, *, byte_by_byte: bool = False) -> str:
    """Send `case`. Returns the faults of the server's answers; empty if there is none."""
    sent = case.sent + LAST
    pieces = [sent[index : index + 1] for index in range(len(sent))] if byte_by_byte else [sent]
    data, hangs = exchange(port, pieces)
    return judge(case, read(data, hangs, case.method))
