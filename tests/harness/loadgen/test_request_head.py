"""The head of a request, with the headers that the user adds."""

from __future__ import annotations

import pytest

from harness.loadgen.http import request_head
from harness.loadgen.load_plan import Target


@pytest.mark.parametrize("name", ["Host", "host", "content-type", "ACCEPT"])
def test_a_header_replaces_our_own_however_its_name_is_written(name: str) -> None:
    head = request_head(Target("127.0.0.1", 80, "/v1/completions", {name: "given"})).decode()
    _, *lines = head.splitlines()
    found = [line for line in lines if line.lower().startswith(f"{name.lower()}:")]
    assert found == [f"{name}: given"]
    assert len(lines) == 3
