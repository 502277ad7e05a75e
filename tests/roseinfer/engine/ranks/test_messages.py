"""Messages between ranks."""

from __future__ import annotations

import socket

import msgspec
import pytest

from roseinfer.engine.ranks.messages import RankDone, receive

pytestmark = pytest.mark.integration


def test_what_a_rank_says_last_is_not_lost_with_what_it_said_before() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for done in (RankDone(), RankDone("not enough memory")):
                theirs.sendall(msgspec.json.encode(done) + b"\n")
            theirs.sendall(b"{")
        assert [receive(ours) for _ in range(3)] == [RankDone(), RankDone("not enough memory"), None]
