"""The settings of published benchmarks are ones that the commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines.selection import make_engine_variants
from harness.schema.loader import build
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import OfflineSettings

FILES = sorted(Path(__file__).parents[3].glob("configs/published/*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_settings_can_be_measured(file: Path) -> None:
    kind = OfflineSettings if file.stem.endswith("-offline") else OnlineSettings
    settings = build(kind, file, {})
    assert settings.repeats >= 3 and len(make_engine_variants(settings)) > 1


def test_there_are_some() -> None:
    assert FILES
