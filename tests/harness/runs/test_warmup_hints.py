"""The hint for each way in which a server answers no request of a warm-up."""

from __future__ import annotations

import pytest

from harness.runs.warmup_hints import warmup_hint


@pytest.mark.parametrize(
    ("error", "tokens", "started", "hint", "of_settings"),
    [
        ("http_404", None, False, "check --endpoint and --served-model", True),
        ("http_404", None, True, "`served_name` in the engine's adapter", True),
        ("wrong_length", 4, False, "--no-ignore-eos", True),
        ("wrong_length", 9, False, "more tokens than the request's max_tokens", False),
        ("only_reasoning", None, False, "raise --output-len", True),
        ("no_usage", None, False, "`usage` at the end of the stream", False),
        ("truncated", None, False, "finish_reason", False),
        ("stream_error", None, False, "see the engine's log", False),
    ],
)
def test_a_hint_for_each_kind(
    error: str, tokens: int | None, started: bool, hint: str, of_settings: bool
) -> None:
    failed = {"error": error, "completion_tokens": tokens, "output_tokens": 8}
    found, changes = warmup_hint(failed, started)
    assert hint in found and changes == of_settings
