"""A server that speaks HTTP/2 alone: requests arrive whole, and answers are read as in HTTP/1.1."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from unittest.mock import Mock

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from harness.engines.adapters.openai import OpenAI
from harness.engines.running.address import Address
from harness.engines.running.faults import Http2OnlyError
from harness.engines.running.model_list import served_model
from harness.engines.server_pages import request
from harness.loadgen.connection import Connection, Owner
from harness.loadgen.http import Http2Error
from harness.loadgen.http2 import Http2Bytes
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target, WireRequest
from harness.loadgen.run_load import run_load
from harness.records.request_record import read_request

pytestmark = pytest.mark.integration

MODELS = json.dumps({"data": [{"id": "m", "max_model_len": 99}]}).encode()
EVENTS = [
    b'data: {"choices": [{"text": " a", "token_ids": [1]}]}\n\n',
    b'data: {"choices": [{"text": " b", "token_ids": [2], "finish_reason": "length"}]}\n\n',
    b"data: [DONE]\n\n",
]


@contextmanager
def serving(bodies: list[bytes], give_up: bool = False) -> Iterator[int]:
    """Answers GET with the list of models and POST with a stream; keeps what was posted in `bodies`."""

    def converse(sock: socket.socket) -> None:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        sock.sendall(connection.data_to_send())
        body: dict[int, bytes] = {}
        methods: dict[int, str] = {}
        while data := sock.recv(1 << 16):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    fields = {str(field[0]): str(field[1]) for field in event.headers}
                    methods[event.stream_id], body[event.stream_id] = fields[":method"], b""
                elif isinstance(event, DataReceived):
                    body[event.stream_id] += event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    stream = event.stream_id
                    bodies.append(body[stream])
                    if give_up and methods[stream] == "POST":
                        connection.reset_stream(stream, 2)
                        continue
                    kind = "application/json" if methods[stream] == "GET" else "text/event-stream"
                    connection.send_headers(stream, [(":status", "200"), ("content-type", kind)])
                    for part in [MODELS] if methods[stream] == "GET" else EVENTS:
                        connection.send_data(stream, part)
                    connection.end_stream(stream)
            sock.sendall(connection.data_to_send())

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=suppressed, args=(sock,), daemon=True).start()

    def suppressed(sock: socket.socket) -> None:
        try:
            converse(sock)
        except Exception:  # the client speaks HTTP/1.1, or has left
            sock.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()


def test_requests_arrive_whole_and_connections_are_reused() -> None:
    """Also those that are longer than what the server takes at once, which is 65,535 bytes."""
    bodies: list[bytes] = []
    sent = [b"x" * size for size in (10, 5_000, 200_000, 0, 70_000)]
    with serving(bodies) as port:
        plan = LoadPlan(
            Target("127.0.0.1", port, "/v1/completions", http2=True),
            [WireRequest(i, None, body) for i, body in enumerate(sent)],
            concurrency=1,
            timeout_s=20,
        )
        result = run_load(plan, start_delay_s=0.05)
    assert bodies == sent
    assert [response.error for response in result.responses] == [None] * len(sent)
    assert [response.reused for response in result.responses] == [False] + [True] * (len(sent) - 1)
    for response in result.responses:
        record = read_request(response, 2)
        assert (record.error, record.completion_tokens) == (None, 2)


class Written(Connection):
    """Keeps what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.owner = Mock(spec=Owner)
        super().__init__(self.owner, Http2Bytes(tls=False))
        self.bytes = b""

    def close(self) -> None:
        self.closed = True

    def write(self, data: bytes) -> bool:
        self.bytes += data
        return True

    def taken(self) -> bytes:
        data, self.bytes = self.bytes, b""
        return data


def test_a_request_is_sent_when_its_last_byte_is() -> None:
    """What the server does not take at once follows as it reads."""
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    connection, response = Written(), RawResponse(0, 0.0, None, None, [])
    connection.send(response, b"POST / HTTP/1.1\r\nHost: a\r\n\r\n" + b"x" * 200_000, fresh=True)
    received, reads = 0, 0
    while data := connection.taken():
        reads += 1
        for event in server.receive_data(data):
            if isinstance(event, DataReceived):
                received += len(event.data)
                server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        assert (response.t_sent is not None) == (received == 200_000)
        connection.received(1.0, server.data_to_send())
    assert received == 200_000 and reads > 2


def test_a_request_that_is_given_up_failed() -> None:
    with serving([], give_up=True) as port:
        target = Target("127.0.0.1", port, "/", http2=True)
        result = run_load(LoadPlan(target, [WireRequest(0, None, b"{}")], 1, 20), start_delay_s=0.05)
    assert result.responses[0].error == "protocol"
    assert "gave the request up" in result.responses[0].detail


def test_it_is_found_out_by_asking() -> None:
    with serving([]) as port:
        address = Address(f"http://127.0.0.1:{port}")
        with pytest.raises(Http2OnlyError, match="HTTP/2 alone"):
            served_model(address.target(), None)
        engine = OpenAI(address)
        assert (engine.model.name, engine.model.max_model_len) == ("m", 99)
        target = Target("127.0.0.1", port, "/v1/completions", http2=True)
        assert request(target, "POST", "/v1/completions", 20, "{}") == (200, b"".join(EVENTS).decode())


def go_away(last: int, code: int = 0) -> bytes:
    return bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + last.to_bytes(4) + code.to_bytes(4)


def test_an_answer_goes_on_after_the_server_takes_no_further_request() -> None:
    """However its bytes are cut. nginx does so after 1,000 requests of a connection."""
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    connection, response = Written(), RawResponse(0, 0.0, None, None, [])
    connection.send(response, b"POST / HTTP/1.1\r\nHost: a\r\n\r\n{}", fresh=True)
    server.receive_data(connection.taken())
    server.send_headers(1, [(":status", "200"), ("content-type", "text/event-stream")])
    data = server.data_to_send() + go_away((1 << 31) - 1) + go_away(1)
    for event in EVENTS:
        server.send_data(1, event)
    server.end_stream(1)
    data += server.data_to_send()
    for at in range(len(data)):
        connection.received(monotonic(), data[at : at + 1])
    assert connection.closed and response.error is None
    assert read_request(response, 2).error is None


@pytest.mark.parametrize("fresh", [True, False])
def test_a_request_that_the_server_did_not_take_is_sent_again(fresh: bool) -> None:
    """Once: on a new connection it fails."""
    connection, response = Written(), RawResponse(0, 0.0, None, None, [])
    connection.send(response, b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", fresh=fresh)
    connection.received(1.0, go_away(0))
    assert connection.closed
    assert connection.owner.retry.called == (not fresh)
    assert response.error == ("disconnected" if fresh else None)


def test_a_connection_that_ends_with_an_error_is_said_to() -> None:
    connection, response = Written(), RawResponse(0, 0.0, None, None, [])
    connection.send(response, b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", fresh=True)
    connection.received(1.0, go_away(1, 2))
    assert (response.error, response.detail) == ("protocol", "the server ended the connection (code 2)")


def test_a_broken_frame_is_an_error() -> None:
    """Data on the stream that is for the connection alone."""
    with pytest.raises(Http2Error, match="not HTTP/2"):
        Http2Bytes(tls=False).received(bytes([0, 0, 1, 0, 0, 0, 0, 0, 0, 1]))
