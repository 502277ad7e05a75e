"""Stored files that a user changed, or another version wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.schema.files import OTHER_VERSION, checked, read_stored
from harness.schema.limits import Slo

OTHER = "is not as this version of bench writes it"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ('{"ttft_ms": 1', "is damaged or cut off: Invalid JSON: "),
        (b"\xff", "is damaged or cut off: Invalid JSON: "),
        ('{"ttft": 1}', f"{OTHER}: there is no ttft to limit; known: "),
        ('[{"ttft_ms": -1}]', f"{OTHER}: 0.ttft_ms: Input should be greater than 0 (given: -1)"),
    ],
)
def test_the_file_the_place_and_the_hint_are_named(content, message, tmp_path):
    path = tmp_path / "kept.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    kind = list[Slo] if content and content[0] == "[" else Slo
    with pytest.raises(UsageError) as raised:
        read_stored(path, kind)
    assert raised.value.message.startswith(f"{path} {message}") and "\n" not in raised.value.message
    assert raised.value.hint == OTHER_VERSION


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text('[{"ttft_ms": 1}]')
    assert read_stored(path, list[Slo]) == [Slo(ttft_ms=1)]
    assert checked({"ttft_ms": 2}, Slo, "it") == Slo(ttft_ms=2)
    with pytest.raises(UsageError, match=f"it {OTHER}: there is no no to limit"):
        checked({"no": 2}, Slo, "it", "another")
