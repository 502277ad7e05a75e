"""Settings of online runs that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from harness.schema.online_settings import OnlineSettings


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"settle": 1, "steady_state": True}, "--settle excludes --window and --steady-state"),
        ({"settle": 1, "window": "0,1"}, "--settle excludes --window and --steady-state"),
        ({"settle": -1}, "greater than 0"),
        ({"min_duration": 0}, "greater than 0"),
    ],
)
def test_bad_durations(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OnlineSettings(**given)
