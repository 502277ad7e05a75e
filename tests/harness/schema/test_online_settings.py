"""Settings that contradict each other, and those of published benchmarks, which the commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.engines.selection import make_engine_variants
from harness.schema.loader import build
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import OfflineSettings

PUBLISHED = sorted(Path(__file__).parents[3].glob("configs/published/*.yaml"))


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


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_published_settings_can_be_measured(file: Path) -> None:
    kind: Any = OfflineSettings if file.stem.endswith("-offline") else OnlineSettings
    settings = build(kind, file, {})
    assert settings.repeats >= 3 and len(make_engine_variants(settings)) > 1


def test_there_are_published_settings() -> None:
    assert PUBLISHED
