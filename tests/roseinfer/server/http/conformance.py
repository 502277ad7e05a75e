"""HTTP/1.1 in unusual and broken forms: the bytes, and the answers that RFC 9112 and RFC 9110 allow."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

BODY = b'{"prompt": [1], "max_tokens": 1}'
#: Only a server that reads another end of the message than others takes this for a request.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Expected(Enum):
    """The answers that a case must get; each case is followed by a good request, the last."""

    SERVED = "answered with success, and so is the last"
    REFUSED = "one answer, an error, or none; then the connection closes"
    ENDED = "one answer at most, whatever it is; then the connection closes"
    EITHER = "served or refused"
    ERROR = "answered with an error, and the last with success"


@dataclass(frozen=True)
class Case:
    """One form. `answers`: their number when it is served. `method`: that of the first request."""

    name: str
    sent: bytes
    expected: Expected
    answers: int = 1
    method: str = "GET"


def head(*lines: bytes, host: bytes = b"host: localhost") -> bytes:
    """Return a GET of /health with these header lines."""
    return b"\r\n".join([b"GET /health HTTP/1.1", *([host] if host else []), *lines, b"", b""])


def post(*lines: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    """Return a completion with these header lines that frame its body."""
    first = [b"POST /v1/completions HTTP/" + version, b"host: localhost", b"content-type: application/json"]
    return b"\r\n".join([*first, *lines, b"", body])


def chunk(data: bytes = BODY) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"transfer-encoding: chunked"
LENGTH = b"content-length: %d" % len(BODY)
END = b"0\r\n\r\n"
CHUNKS = chunk() + END
#: The head of a chunked POST.
CHUNKED_POST = post(CHUNKED)
S, R, X, B, E = Expected.SERVED, Expected.REFUSED, Expected.ENDED, Expected.EITHER, Expected.ERROR


def _line(name: str, line: bytes, expected: Expected, host: bytes = b"host: localhost\r\n") -> Case:
    return Case(f"request line: {name}", line + b"\r\n" + host + b"\r\n", expected)


REQUEST_LINES = [
    _line("plain", b"GET /health HTTP/1.1", S),
    _line("query", b"GET /health?a=b&c HTTP/1.1", S),
    _line("absolute form", b"GET http://localhost/health HTTP/1.1", S),
    _line("absolute form, upper case, port", b"GET HTTP://LOCALHOST:80/health HTTP/1.1", S),
    _line("absolute form, another Host", b"GET http://localhost/health HTTP/1.1", S, b"host: 127.0.0.1\r\n"),
    _line("absolute form, no authority", b"GET http:///health HTTP/1.1", R),
    _line("absolute form, user", b"GET http://a@localhost/health HTTP/1.1", B),
    _line("empty lines before", b"\r\nGET /health HTTP/1.1", S),
    _line("HTTP/1.2", b"GET /health HTTP/1.2", B),
    _line("two spaces", b"GET  /health HTTP/1.1", B),
    _line("space at the end", b"GET /health HTTP/1.1 ", B),
    _line("no version", b"GET /health", R, b""),
    *(
        _line(version.decode(), b"GET /health " + version, R)
        for version in (
            b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/1", b"HTTP/1.", b"HTTP/11.1", b"HTTP/1.10",
            b"http/1.1",
            b"HTTPS/1.1", b"HTTP /1.1", b"HTTP/1,1", b"HTTP/x.1",
        )
    ),
    _line("RTSP/1.0", b"GET /health RTSP/1.0", X),
    _line("space before", b" GET /health HTTP/1.1", R),
    _line("tab", b"GET\t/health\tHTTP/1.1", R),
    _line("no target", b"GET HTTP/1.1", R),
    _line("relative target", b"GET health HTTP/1.1", R),
    _line("space in the target", b"GET /he alth HTTP/1.1", R),
    _line("CR in the target", b"GET /he\ralth HTTP/1.1", R),
    _line("NUL in the target", b"GET /he\0alth HTTP/1.1", R),
    _line("DEL in the target", b"GET /he\x7falth HTTP/1.1", R),
    _line("UTF-8 in the target", "GET /hé HTTP/1.1".encode(), Expected.EITHER),
    _line("no such path", b"GET /none HTTP/1.1", E),
    _line("method in lower case", b"get /health HTTP/1.1", B),
    _line("unknown method", b"BREW /health HTTP/1.1", B),
    _line("method with a control", b"GE\x01T /health HTTP/1.1", R),
    _line("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n", R, b""),
    _line("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", R),
    _line("too long", b"GET /" + b"a" * 70_000 + b" HTTP/1.1", R),
    Case("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", B, method="OPTIONS"),
    Case("CONNECT", b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost:1\r\n\r\n" + SMUGGLED, X),
    Case("HEAD", b"HEAD /health HTTP/1.1\r\nhost: localhost\r\n\r\n", S, method="HEAD"),
]  # fmt: skip

HOSTS = [
    Case("no Host", head(host=b""), R),
    Case("no Host in HTTP/1.0", b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", B),
    *(
        Case(f"Host: {value.decode('latin-1')}", head(host=b"host: " + value), expected)
        for value, expected in (
            (b"localhost:80", S), (b"127.0.0.1", S), (b"[::1]:8000", S), (b"LocalHost", S), (b"", B),
            (b"a b", R), (b"local/host", R), (b"user@localhost", R), (b"localhost:abc", R),
            (b"localhost:1:2", R),
            (b"localhost, localhost", R), (b"local\0host", R), (b"[::1", R), (b"localhost\\", R),
        )
    ),
    Case("two Hosts", head(b"host: localhost"), R),
    Case("two Hosts that differ", head(b"Host: other.example"), R),
]  # fmt: skip

HEADERS = [
    *(
        Case(f"header: {name}", head(line), expected)
        for name, line, expected in (
            ("no value", b"x:", S), ("spaces around the value", b"x: \t a \t ", S),
            ("obs-text", b"x: \xe9", S), ("name in capitals", b"X-Y: a", S),
            ("tab in the value", b"x: a\tb", S), ("continued by a space", b"x: a\r\n b", B),
            ("continued by a tab", b"x: a\r\n\tb", B), ("space before the colon", b"x : a", R),
            ("space in the name", b"x y: a", R), ("no name", b": a", R), ("no colon", b"xyz", R),
            ("NUL in the value", b"x: a\0b", R), ("CR in the value", b"x: a\rb", R),
            ("CR at the end", b"x: a\r", R), ("control in the name", b"x\x01: a", R),
            ("bracket in the name", b"x(y): a", R), ("UTF-8 name", "é: a".encode(), R),
            ("BEL in the value", b"x: a\x07b", B),
        )
    ),
    Case("first header continued", head(b"x: a", host=b" host: localhost"), R),
    Case("lines that end with LF alone", head().replace(b"\r\n", b"\n"), B),
    Case("a line that ends with LF alone", head(b"x: a\ny: b"), B),
    Case("200 headers", head(*(b"x%d: a" % index for index in range(200))), B),
    Case("a long header", head(b"x: " + b"a" * 70_000), B),
    Case("many long headers", head(*(b"x%d: " % index + b"a" * 1000 for index in range(1000))), R),
]  # fmt: skip

LENGTHS = [
    Case("length", post(LENGTH, body=BODY), S, method="POST"),
    *(
        Case(f"length {value.decode('latin-1')!r}", post(b"content-length: " + value, body=BODY), expected)
        for value, expected in (
            (b"+32", R), (b"-32", R), (b"0x20", R), (b"3 2", R), (b"32a", R), (b"", R), (b"32;", R),
            (b"3.2e1", R), (b"18446744073709551616", R), (b"18446744073709551648", R), (b"9" * 30, R),
            (b"\xb32", R), (b"32, 31", R), (b"31, 32", R), (b"32,32", B), (b"32\0", R), (b"\x0b32", R),
            (b"3_2", R), (b"032", B), (b"32 ", S),
        )
    ),
    Case("two lengths", post(LENGTH, LENGTH, body=BODY), B),
    Case("two lengths that differ", post(LENGTH, b"content-length: 0", body=BODY + SMUGGLED), R),
    Case("two lengths that differ, shorter first", post(b"content-length: 0", LENGTH, body=BODY), R),
    Case("space before the colon of the length", post(b"content-length : 32", body=BODY), R),
    Case("length continued", post(b"content-length:\r\n 32", body=BODY), B),
    Case("a body that is a request", head(b"content-length: %d" % len(SMUGGLED)) + SMUGGLED, B),
]  # fmt: skip

CODINGS = [
    Case("chunked", post(CHUNKED, body=CHUNKS), S, method="POST"),
    Case("Chunked", post(b"Transfer-Encoding: Chunked", body=CHUNKS), S, method="POST"),
    Case("length and chunked", post(LENGTH, CHUNKED, body=CHUNKS), X),
    Case("chunked and length", post(CHUNKED, b"content-length: 4", body=CHUNKS + SMUGGLED), X),
    Case("chunked and length 0", post(CHUNKED, b"content-length: 0", body=CHUNKS), X),
    *(
        Case(
            f"coding {value.decode('latin-1')!r}",
            post(b"transfer-encoding: " + value, body=CHUNKS),
            expected,
        )
        for value, expected in (
            (b"xchunked", R), (b"chunkedx", R), (b"chunked, identity", R), (b"identity", R), (b"gzip", R),
            (b"chunked, gzip", R), (b"gzip, chunked", R), (b"chunked, chunked", R), (b"identity, chunked", R),
            (b"chunked;q=1", R), (b"\x0bchunked", R), (b"chunked\0", R), (b'"chunked"', R), (b"", R),
            (b"chunk ed", R),
            (b"chunked,", B), (b",chunked", B), (b"\tchunked", S), (b"chunked ", S), (b"\rchunked", R),
        )
    ),
    *(
        Case(f"length and coding {value!r}", post(LENGTH, b"transfer-encoding: " + value, body=BODY), X)
        for value in (b"identity", b"xchunked", b"gzip", b"chunked, identity", b"\x0bchunked", b" ")
    ),
    Case("chunked twice", post(CHUNKED, CHUNKED, body=CHUNKS), R),
    Case("identity, then chunked", post(b"transfer-encoding: identity", CHUNKED, body=CHUNKS), R),
    Case("chunked, then identity", post(CHUNKED, b"transfer-encoding: identity", body=CHUNKS), R),
    Case("space before the colon of the coding", post(b"transfer-encoding : chunked", body=CHUNKS), R),
    Case("coding continued", post(b"transfer-encoding:\r\n chunked", body=CHUNKS), B),
    Case(
        "a name like the coding's", post(LENGTH, b"transfer_encoding: chunked", body=BODY), B, method="POST",
    ),
    Case("chunked in HTTP/1.0", post(CHUNKED, b"connection: keep-alive", body=CHUNKS, version=b"1.0"), X),
]  # fmt: skip

_HEX = b"%x" % len(BODY)
CHUNK_FORMS = [
    *(
        Case(f"chunk size {size[:20]!r}", post(CHUNKED, body=size + b"\r\n" + BODY + b"\r\n" + END), expected)
        for size, expected in (
            (_HEX + b";a=b", S), (_HEX + b';a="b;c"', S), (b"000" + _HEX, S), (_HEX.upper(), S),
            (b"0x" + _HEX, R), (b"+" + _HEX, R), (b"-" + _HEX, R), (b" " + _HEX, R), (b"g", R), (b"", R),
            (b"1" + b"0" * 16, R), (b"f" * 17, R), (b"2_0", R), (_HEX + b" ", B), (_HEX + b";a\0", R),
            (_HEX + b";a\rb", R), (_HEX + b";a\nb", R), (_HEX + b"\x0b", R), (_HEX + b" " + _HEX, R),
            (_HEX + b";" + b"a" * 70_000, R),
        )
    ),
    Case(
        "chunk size that ends with LF alone", post(CHUNKED, body=chunk().replace(b"\r\n", b"\n", 1) + END), R,
    ),
    Case("chunk without an end", post(CHUNKED, body=_HEX + b"\r\n" + BODY + END), R),
    Case("chunk that ends with LF alone", post(CHUNKED, body=_HEX + b"\r\n" + BODY + b"\n" + END), R),
    Case("chunk longer than its size", post(CHUNKED, body=b"2\r\n" + BODY + b"\r\n" + END), R),
    Case("last chunk 000", post(CHUNKED, body=chunk() + b"000\r\n\r\n"), S, method="POST"),
    Case(
        "many chunks",
        post(CHUNKED, body=b"".join(chunk(b"%c" % byte) for byte in BODY) + END), S, method="POST",
    ),
    *(
        Case(f"trailer {line!r}", post(CHUNKED, body=chunk() + b"0\r\n" + line + b"\r\n\r\n"), expected)
        for line, expected in (
            (b"x: a", S), (b"content-length: 5", B), (b"host: other.example", B),
            (b"transfer-encoding: x", B), (b"xyz", R), (b"x : a", R), (b"x: a\0", R),
        )
    ),
]  # fmt: skip

CONNECTIONS = [
    Case("pipelined", head() * 9 + head(b"x: last"), S, answers=10),
    Case("pipelined bodies", post(LENGTH, body=BODY) * 3, S, answers=3, method="POST"),
    Case("nonsense after a request", head() + b"nonsense\r\n\r\n", X, answers=1),
    Case("close", head(b"connection: close"), X),
    Case("close among others", head(b"connection: keep-alive, Close"), X),
    Case("HTTP/1.0", b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n", X),
    Case("HTTP/1.0, kept", b"GET /health HTTP/1.0\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\n", B),
    Case("upgrade", head(b"connection: upgrade", b"upgrade: h2c"), S),
    Case(
        "upgrade to websocket",
        head(b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: YQ=="), B,
    ),
    Case("host is no option of a connection", head(b"connection: host"), S),
    Case("expect 100-continue", post(LENGTH, b"expect: 100-continue", body=BODY), S, method="POST"),
    Case(
        "expect 100-continue for chunks",
        post(CHUNKED, b"expect: 100-continue", body=CHUNKS), S, method="POST",
    ),
    Case("expect something else", post(LENGTH, b"expect: 200-ok", body=BODY), B, method="POST"),
    Case(
        "expect in HTTP/1.0",
        post(LENGTH, b"expect: 100-continue", body=BODY, version=b"1.0"),
        X, method="POST",
    ),
]  # fmt: skip

CASES = [*REQUEST_LINES, *HOSTS, *HEADERS, *LENGTHS, *CODINGS, *CHUNK_FORMS, *CONNECTIONS]


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
    answers = read(data, hangs, case.method)
    unasked = byte_by_byte and case.name.startswith("expect 100-continue") and not answers.continued
    return "no 100 Continue" if unasked else judge(case, answers)
