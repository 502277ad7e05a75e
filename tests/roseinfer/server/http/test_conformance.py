"""HTTP/1.1 in unusual and broken forms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.roseinfer.server.http.cases import CASES, Case
from tests.roseinfer.server.http.conformance import Answers, judge, violation


@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_every_form(serving: Any, byte_by_byte: bool) -> None:
    """In one piece, and in pieces of one byte."""
    cases = [case for case in CASES if not byte_by_byte or len(case.sent) < 1000]
    faults = {case.name: violation(serving.port, case, byte_by_byte=byte_by_byte) for case in cases}
    assert not {name: fault for name, fault in faults.items() if fault}
    assert not [line for line in serving.log if "Traceback" in line]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:30])
def test_the_list_can_find_something(case: Case) -> None:
    """Each case finds fault with a server that answers everything alike."""
    answers = [Answers([200] * (case.answers + 4)), Answers([200], hangs=True), Answers([500, 500])]
    assert all(judge(case, each) for each in answers)
