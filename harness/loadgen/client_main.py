"""One client process: `python -m harness.loadgen.client_main PLAN_FILE USAGE_FILE RESPONSES`.

It writes `ready`, reads the common start time (seconds of CLOCK_MONOTONIC) from its standard input, and runs
its part of the load. At most twice a second it writes `SENT DONE FAILED TTFT_US`, and the responses that have
ended to the open file of the number RESPONSES; at the end its usage. It dies when its standard input closes,
which happens when the process that started it dies.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # what imports make stays: nobody need look through it for garbage

import asyncio
import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from harness.loadgen.client import Client, first_token
from harness.loadgen.http import request_bytes, request_head
from harness.loadgen.live_answers import LiveAnswers
from harness.loadgen.load_plan import ClientUsage, LoadPlan, RawResponse, WireRequest
from harness.loadgen.pacing import Batches, ClosedLoop, OpenLoop
from harness.loadgen.response_file import ResponseWriter
from harness.loadgen.retrying import failed_status, pause_s
from harness.loadgen.system_limits import ask_for_short_slices, raise_open_files

_PROGRESS_S = 0.5
#: The number of latest answers that progress reports.
_WATCHED = 200


class WorkerPlan(msgspec.Struct, frozen=True):
    """One client's share of a load. `addresses` are those of each target, resolved; `cpu` is the core to stay
    on."""

    client: int
    plan: LoadPlan
    addresses: list[list[str]]
    cpu: int | None = None


class _Run:
    """One client's running load. It ends with `stdin`, and reports its progress to `stdout`."""

    def __init__(self, work: WorkerPlan, heads: list[bytes], file: int, stdin: int, stdout: int) -> None:
        self._client_id = work.client
        self._stdin, self._stdout = stdin, stdout
        self._plan = work.plan
        self._finished = asyncio.Event()
        self._writer = ResponseWriter(file)
        self._over = self._failed = 0
        self._stopped = False
        self._ttft: deque[float] = deque(maxlen=_WATCHED)
        self._live = LiveAnswers(work.plan.requests)
        self._heads = heads
        self._requests = {each.index: self._whole(each, each.body) for each in work.plan.requests}
        self._of_answers = {each.index: each for each in work.plan.requests if each.answers}
        self._client = Client(work.plan, work.addresses, self._requests, self._ended)

    def _whole(self, request: WireRequest, body: bytes) -> bytes:
        return request_bytes(self._heads[request.route], body, request.header)

    async def measure(self, t0: float) -> None:
        """Send everything and wait for the last response to end."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._stdin, _leave_with_parent, self._stdin)
        requests, concurrency = self._plan.requests, self._plan.concurrency
        closed = Batches if self._plan.in_batches else ClosedLoop
        self._pacing = (
            OpenLoop(self._client, requests, t0)
            if concurrency is None
            else closed(self._client, requests, t0, concurrency)
        )
        self._pacing.start()
        over = False
        while not over:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), _PROGRESS_S)
            over = self._over == len(requests)  # else more responses may end during the write
            self._tell()
            self._client.free += await self._writer.write()
        self._pacing.close()
        self._client.close()

    def _ended(self, response: RawResponse) -> None:
        failed = response.error is not None or failed_status(response) is not None
        if failed and not self._stopped and (pause := pause_s(response, self._plan)) is not None:
            asyncio.get_running_loop().call_later(pause, self._again, response)
            return
        response.client = self._client_id
        self._over += 1
        self._failed += failed
        if response.t_sent is not None and response.error is None and (first := first_token(response)):
            self._ttft.append(first - response.t_sent)
        for index, body in self._live.take(response).items():
            self._requests[index] = self._whole(self._of_answers[index], body)
        if not self._stopped:
            self._pacing.ended(response)
        self._client.free -= self._writer.add(response)
        most = self._plan.most_failed
        if most is not None and self._failed > most and not self._stopped:
            self._stop()
        if self._over == len(self._plan.requests):
            self._finished.set()

    def _again(self, response: RawResponse) -> None:
        """Send a request that failed once more, as if nothing had come of it but the time."""
        response.retries += 1
        if response.t_sent is None:  # there was no connection
            response.t_sent = response.t_sched
        response.segments, response.error, response.detail, response.t_end = [], None, "", None
        self._client.send(response)

    def _stop(self) -> None:
        """Send nothing more: too many requests have failed. Those in flight are waited for."""
        self._stopped = True
        self._pacing.close()
        for index in sorted(self._client.unsent):
            unsent = RawResponse(index, time.monotonic(), None, None, [], "stopped", client=self._client_id)
            unsent.detail = f"not sent, as {self._failed} requests had failed"
            self._over += 1
            self._client.free -= self._writer.add(unsent)

    def _tell(self) -> None:
        ttft_us = round(1e6 * median(self._ttft)) if self._ttft else 0
        sent = len(self._plan.requests) - len(self._client.unsent)
        line = f"{sent} {self._over} {self._failed} {ttft_us}\n"
        os.write(self._stdout, line.encode())


def _leave_with_parent(stdin: int) -> None:
    if not os.read(stdin, 1):
        os._exit(1)


def _read_line(fd: int) -> str:
    """One line, byte by byte, so that nothing of what follows is swallowed; what there was, at the end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line.decode()


def main(plan_file: str, usage_file: str, responses: str) -> int:
    """Run the load of `plan_file`."""
    work = msgspec.msgpack.decode(Path(plan_file).read_bytes(), type=WorkerPlan)
    if work.cpu is not None:
        os.sched_setaffinity(0, {work.cpu})
    ask_for_short_slices()
    raise_open_files()
    heads = [request_head(target) for target in work.plan.target.all]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def prepare() -> _Run:
            return _Run(work, heads, int(responses), stdin=0, stdout=1)

        load = runner.run(prepare())
        gc.collect()
        gc.freeze()
        gc.disable()
        os.write(1, b"ready\n")
        start = _read_line(0)
        if not start.endswith("\n"):
            return 1
        t0 = float(start)

        async def run() -> None:
            await load.measure(t0)

        cpu = time.process_time()
        try:
            runner.run(run())
        except OSError as error:
            sys.exit(f"the answers cannot be kept: {error}")
        usage = ClientUsage(work.client, time.process_time() - cpu, time.monotonic() - t0)
    Path(usage_file).write_bytes(msgspec.msgpack.encode(usage))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
