"""Text from outside: what hides becomes visible, what is secret does not."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import plain_text
from harness.errors import UsageError
from harness.plain_text import hide, hide_options, hide_values, one_line, visible, visible_content

#: By Unicode's own tables: control characters, line and paragraph ends, surrogates, and marks of direction.
DIRECTION = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def hides(character: str) -> bool:
    if character in "\t\n":
        return False
    category = unicodedata.category(character)
    marks = character in "\u200e\u200f\u061c"
    return category in ("Cc", "Zl", "Zp", "Cs") or unicodedata.bidirectional(character) in DIRECTION or marks


ANY = st.text(st.characters())  # surrogates too


def test_every_character_that_hides_is_written_out() -> None:
    hidden = [chr(code) for code in range(0x110000) if hides(chr(code))]
    assert len(hidden) > 2000
    assert not [character for character in hidden if visible(character) == character]


def test_other_scripts_and_emoji_stay() -> None:
    text = "模型 עברית العربية ñ é 👩‍👩‍👧 ½ ms\tµs\n\N{NO-BREAK SPACE}%"
    assert visible(text) == text


@given(ANY, st.integers(1, 40))
def test_nothing_that_hides_is_left(text: str, limit: int) -> None:
    shown = visible(text)
    assert not any(map(hides, shown))
    assert visible(shown) == shown
    shown.encode()  # or a file and a page could not hold it
    assert not set(one_line(text)) & {"\n", "\t"} and len(one_line(text, limit)) <= limit


@given(st.recursive(ANY, lambda inner: st.lists(inner) | st.dictionaries(ANY, inner), max_leaves=8))
def test_json_means_the_same_and_a_terminal_can_show_it(content: object) -> None:
    text = visible(json.dumps(content, ensure_ascii=False))
    assert not any(map(hides, text)) and visible(text) == text
    assert json.loads(text) == json.loads(json.dumps(content))


@given(st.dictionaries(ANY, st.lists(ANY)))
def test_the_keys_of_a_file_are_text_too(content: dict[str, list[str]]) -> None:
    cleaned = visible_content(content)
    every = [*cleaned, *(text for texts in cleaned.values() for text in texts)]
    assert every == [visible(text) for text in every] and not any(map(hides, "".join(every)))


def test_errors_quote_safely() -> None:
    assert str(UsageError("\x1b[2J", "\u202e")) == "\\u001b[2J\n  hint: \\u202e"


@pytest.mark.parametrize("secret", ["sk-0123456789", 'p"ass\\word', "pä ss-wörd-1"])
def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setattr(plain_text, "_secrets", set())
    hide(secret)
    for text in (
        f"Bearer {secret} is wrong",
        json.dumps({"error": secret}),
        json.dumps([secret], ensure_ascii=False),
    ):
        shown = visible(text)
        assert "[secret]" in shown and secret not in shown and json.dumps(secret)[1:-1] not in shown


def test_variables_that_hold_secrets_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_text, "_secrets", set())
    hide_values({"OPENAI_API_KEY": "aaaaaaa1", "HF_TOKEN": "bbbbbbb2", "--api-key": "ccccccc3",
                 "TOKENIZERS_PARALLELISM": "ddddddd4", "SSH_KEY": "/eeeeee5", "MY_KEY": "short"})  # fmt: skip
    shown = visible("aaaaaaa1 bbbbbbb2 ccccccc3 ddddddd4 /eeeeee5 short")
    assert shown == "[secret] [secret] [secret] ddddddd4 /eeeeee5 short"


def test_options_that_hold_secrets_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are no names, and options no values."""
    monkeypatch.setattr(plain_text, "_secrets", set())
    hide_options(["serve", "--prefer", "first-token", "--chunked-prefill-size", "128", "--no-token",
                  "--max-model-len", "--api-key", "ccccccc3", "--hf-token=bbbbbbb2"])  # fmt: skip
    assert plain_text._secrets == {"ccccccc3", "bbbbbbb2"}


@pytest.mark.parametrize("key", ["roseinfer", "transformers", "environment", "00000000", "2026112612345678"])
def test_words_and_numbers_of_records_stay(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(plain_text, "_secrets", set())
    hide_values({"OPENAI_API_KEY": key})
    assert visible(f'{{"{key}": 0.1{key}}}') == f'{{"{key}": 0.1{key}}}'
