"""Drafts of a request's own tokens, and when they pay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.speculation import (
    FEWEST,
    LEAST,
    LENT,
    LONGEST,
    MOST,
    MOST_ROWS,
    SHARE,
    SHORTEST,
    Account,
    Speculation,
    lookup,
)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 20))
def test_what_followed_the_longest_repetition_comes_next(tokens, most):
    drafts, agreeing = lookup(np.array(tokens, np.int32), most)
    ends = range(len(tokens) - 1)
    agree = [
        next(
            (n for n in range(LONGEST) if n > end or tokens[end - n] != tokens[-1 - n]),
            LONGEST,
        )
        for end in ends
    ]
    assert agreeing == max(agree, default=0)
    if agreeing < SHORTEST:
        assert not len(drafts)
        return
    place = max(end for end in ends if agree[end] == agreeing)
    expected = list(tokens)
    for _ in range(most):
        expected.append(expected[len(expected) - len(tokens) + place + 1])
    assert drafts.tolist() == expected[len(tokens) :]


def rows_of(prompts: list[list[int]], max_tokens: int = 50) -> Running:
    """Requests that have their first token."""
    running = Running(len(prompts), 200, 16)
    for id, prompt in enumerate(prompts):
        ids = np.array(prompt, np.int32)
        running.add(Request(id, ids[:-1], SamplingParams(max_tokens), 0.0, ids), np.zeros(0, np.int64), 0)
    return running


def drafts_of(speculation: Speculation, running: Running, count: int = 1) -> list[np.ndarray]:
    """Draft for the first `count` rows."""
    rows = np.arange(count)
    return speculation.draft(running, rows, speculation.plan(running, rows))


def paying(most: int = 7) -> Speculation:
    speculation = Speculation(most)
    for _ in range(FEWEST):
        speculation._account.plain(1, 1.0)
    return speculation


CYCLE = [1, 2, 3, 4] * 3


def test_a_request_drafts_more_while_its_drafts_are_accepted():
    running, speculation = rows_of([CYCLE]), paying()
    request, sizes = running.request(0), []
    for accepted in (9, 9, 3, 0, 0, 0):
        (draft,) = drafts_of(speculation, running)
        sizes.append(len(draft))
        speculation.verified(request, len(draft), min(accepted, len(draft)))
    assert sizes == [4, 7, 7, 3, 1, 1]
    assert speculation.counts.drafts == 6 and speculation.counts.tokens == sum(sizes)
    assert speculation.counts.accepted == (3, 3, 3, 2, 1, 1, 1)
    running.length[0] = SHORTEST + 4  # a shorter repetition than one that is tried all the same
    assert not drafts_of(speculation, running)


def test_drafts_end_where_the_answer_must():
    for left, drafted in ((1, 0), (2, 1), (3, 2)):
        running = rows_of([CYCLE], max_tokens=1 + left)
        drafts = drafts_of(paying(), running)
        assert sum(map(len, drafts)) == drafted


@pytest.mark.parametrize(("requests", "drafted"), [(1, 7), (8, 7), (16, 3), (32, 1), (33, 0)])
def test_a_step_has_few_rows(requests, drafted):
    running, speculation = rows_of([CYCLE] * requests), paying()
    for row in range(requests):
        running.request(row).depth = 7
    drafts = drafts_of(speculation, running, requests)
    assert [len(draft) for draft in drafts] == [drafted] * (requests if drafted else 0)
    assert sum(1 + len(draft) for draft in drafts) <= MOST_ROWS


def test_nothing_is_drafted_before_plain_steps_are_known():
    account = Account()
    for _ in range(FEWEST):
        assert not account.allows(4)
        account.plain(4, 1.0)
    assert account.allows(4) and account.allows(5) and not account.allows(3)


@given(st.lists(st.tuples(st.integers(0, 7), st.floats(1, 3)), min_size=10, max_size=400))
def test_drafts_lose_little_where_they_do_not_pay(steps):
    """Steps with drafts yield no more tokens than others, and take longer."""
    account, plain, lost = Account(), 0, 0.0
    for drafted, seconds in steps:
        if account.allows(2) and account.pays(2, drafted):
            account.drafted(2, 2, seconds)
            account.accepted(0.0)
            lost += seconds - 1
        else:
            account.plain(2, 1.0)
            plain += 1
    assert lost <= SHARE * plain + 2


def test_prompts_for_a_draft_model_are_lent_and_repaid():
    account = Account()
    for _ in range(FEWEST):
        account.plain(2, 1.0)
    account.lend(LENT + 1)
    account.drafted(2, 4, 2.0)
    assert account.allows(2) and not account.lends(2)
    for gained in (4, 8, 12):
        account.drafted(2, 16, 4.0)
        assert account._lent == pytest.approx(LENT + 1 - SHARE * FEWEST - gained)
    assert account.lends(2)
    for _ in range(6):
        account.drafted(2, 16, 4.0)
    assert account._lent == 0 < account._gained


def test_what_was_gained_or_lost_is_soon_forgotten():
    account = Account()
    for _ in range(FEWEST):
        account.plain(1, 1.0)
    account.drafted(1, 1000, 1.0)
    for _ in range(int(MOST) + 1):
        assert account.allows(1)
        account.drafted(1, 1, 2.0)
    assert not account.allows(1)
    account.drafted(1, 1, 1000.0)
    for _ in range(round(-LEAST / SHARE)):
        account.plain(1, 1.0)
    assert account.allows(1)


def test_a_step_needs_drafts_for_its_cost():
    """Here a step of eight requests with drafts takes twice as long, and half of the drafts are accepted."""
    account = Account()
    for _ in range(FEWEST):
        account.plain(8, 1.0)
    assert account.pays(8, 1) and not account.pays(8, 0)
    for _ in range(50):
        account.drafted(8, 16, 2.0)
        account.accepted(0.5)
    assert account.pays(8, 17) and not account.pays(8, 15)
    for _ in range(300):
        account.plain(8, 1.0)
    assert account.pays(8, 1), "it is never tried again"
