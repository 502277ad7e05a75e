"""A slot that is handed over: one request holds it, another waits for it, until the first ends or its client
leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

import uvloop

from harness.loadgen.client import Client, token_times
from harness.loadgen.http import request_bytes, request_head
from harness.loadgen.load_plan import LoadPlan, RawResponse


def hand_over(plan: LoadPlan, addresses: Sequence[str], leave_after: int | None) -> list[RawResponse]:
    """Send a plan's requests and return their responses, in order.

    The last request is sent when the last but one has its first token, and that one when all before it have
    theirs. With `leave_after` the client of the last but one leaves when so many chunks with tokens have
    come: `t_end` is when. It ends early where a request ends without a token.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_hand_over(plan, addresses, leave_after))


async def _hand_over(plan: LoadPlan, addresses: Sequence[str], leave_after: int | None) -> list[RawResponse]:
    head = request_head(plan.target)
    requests = {request.index: request_bytes(head, request.body) for request in plan.requests}
    *others, holder, waiting = requests
    ended: dict[int, RawResponse] = {}
    begun: set[int] = set()
    over = asyncio.Event()

    def look(response: RawResponse) -> bool:
        chunks = sum(1 for _ in token_times(response))
        if chunks and response.index not in begun:
            begun.add(response.index)
            if response.index == holder:
                client.submit(waiting, monotonic())
            elif begun == set(others):
                client.submit(holder, monotonic())
        return response.index == holder and leave_after is not None and chunks >= leave_after

    def end(response: RawResponse) -> None:
        ended[response.index] = response
        if len(ended) == len(requests) or response.index not in begun:
            over.set()

    client = Client(plan, [addresses], requests, end, look)
    try:
        for index in others or [holder]:
            client.submit(index, monotonic())
        await over.wait()
    finally:
        client.close()
    return [ended[index] for index in sorted(ended)]
