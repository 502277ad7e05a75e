"""Settings that contradict each other, and those of published benchmarks, which the commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.engines.selection import make_engine_variants
from harness.errors import UsageError
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


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"body": "{'a': 1}"}, "it is not JSON"),
        ({"body": "no/such/file.json"}, "neither JSON like"),
        ({"body": "[1]"}, "neither JSON like"),
        ({"body": {"model": "m"}}, "use --served-model"),
        ({"body": {"max_tokens": 4}}, "use --output-len"),
        ({"body": {"metadata": [{"api_key": "sk-1"}]}}, "^(?!.*sk-1).*env:VARIABLE"),
        ({"sampling": "warmth=1"}, "is none of temperature"),
        ({"sampling": "temperature=hot"}, "valid number"),
        ({"sampling": "top_p=0.9"}, "a temperature above 0"),
        ({"sampling": "temperature=1", "body": {"temperature": 1}}, "not in both"),
        ({"base_url": "http://h", "session_header": "X Y"}, "is not the name of a header"),
        (
            {"base_url": "http://h", "route": "sticky"},
            "needs a server with several URLs, or --session-header",
        ),
        ({"server": "a=http://h,http://i", "route": "sometimes"}, "is sticky or round-robin"),
        ({"server": "a=http://h,http://i", "route": "a=sometimes"}, "is sticky or round-robin"),
        ({"max_error_rate": "100%"}, "less than 1"),
        ({"retries": -1}, "greater than or equal to 0"),
        ({"response_format": "f", "ignore_eos": False, "endpoint": "messages"}, "needs --endpoint"),
    ],
)
def test_bad_fields_of_requests(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        build(OnlineSettings, None, given)


def test_fields_of_requests_are_kept_as_they_are_given(tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text('{"user": "env:TEAM", "seed": null}')
    settings = OnlineSettings(body=str(file), sampling="temperature=0.5,top_k=40")
    again = OnlineSettings.model_validate_json(settings.model_dump_json())
    assert again.request_body == {"temperature": 0.5, "top_k": 40, "user": "env:TEAM", "seed": None}
    assert again.is_sampled and not OnlineSettings().is_sampled


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_published_settings_can_be_measured(file: Path) -> None:
    kind: Any = OfflineSettings if file.stem.endswith("-offline") else OnlineSettings
    settings = build(kind, file, {})
    assert settings.repeats >= 3 and len(make_engine_variants(settings)) > 1


def test_there_are_published_settings() -> None:
    assert PUBLISHED
