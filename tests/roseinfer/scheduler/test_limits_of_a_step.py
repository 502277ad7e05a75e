"""What a step may hold, and what a client keeps when its request is put back."""

from __future__ import annotations

import numpy as np
import pytest

from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import NoPrefixCache
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.policies import FillUp, Policies
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.scheduler import Scheduler


def scheduler(policies: Policies, prompts: int) -> Scheduler:
    """With that many requests of 40 tokens, each of a client of its own."""
    running, allocator = Running(8, 64, 4), BlockAllocator(200)
    made = Scheduler(running, allocator, NoPrefixCache(allocator, 4), policies, ())
    for client in range(prompts):
        prompt = np.zeros(40, dtype=np.int32)
        made.add(Request(client, prompt, SamplingParams(20, ignore_eos=True), 0.0, prompt, client=client))
    return made


@pytest.mark.parametrize("rows", [4, 64, 4096])
def test_parts_of_prompts_keep_to_the_limit_of_a_step(rows: int) -> None:
    made = scheduler(Policies(8, 8, 16, composition=FillUp(((8, rows),))), 4)
    batch = made.prepare()
    assert batch is not None and 0 < batch.decode_start <= 16


def test_a_client_whose_request_is_put_back_keeps_what_it_was_given() -> None:
    made = scheduler(Policies(8, 8, 64), 1)
    batch = made.prepare()
    assert batch is not None
    made.launched(batch)
    made.process(batch, np.array([5]))
    before = made._waiting._given[0]
    made._preempt(int(batch.requests[0]))
    assert before == 40 and made._waiting._given[0] == 41
