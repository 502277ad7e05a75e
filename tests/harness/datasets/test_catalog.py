"""Files of prompts and conversations, whole and damaged, and those known by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.datasets.dataset import Conversation, Turn, load_dataset
from harness.errors import UsageError

SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "gpt", "value": "left out: nobody asked"},
        {"from": "human", "value": "one?"}, {"from": "gpt", "value": "1"},
        {"from": "human", "value": "two?"}, {"from": "gpt", "value": "2"},
    ]},
    {"id": "b", "conversations": [{"from": "system", "value": "be brief"}, {"from": "human", "value": "x?"}]},
    {"id": "c", "conversations": []},
]  # fmt: skip
LINES = [
    {"prompt": "hello", "completion": "hi", "other": 1},
    {"messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"}, {"role": "user", "content": "d", "think_s": 2.5},
    ]},
    {"messages": [
        {"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "text", "text": "this?"}]},
        {"role": "assistant", "content": None},
    ]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]}]},
    {"prompt": ""},
]  # fmt: skip


def write(path: Path, content: str | list[Any]) -> Path:
    lines = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
    path.write_text(lines)
    return path


def test_sharegpt(tmp_path: Path) -> None:
    path = write(tmp_path / "some.json", json.dumps(SHAREGPT))
    found = load_dataset(f"sharegpt:{path}")
    assert found.conversations == (
        Conversation((Turn("one?", "1"), Turn("two?", "2"))),
        Conversation((Turn("x?"),), "be brief"),
    )
    assert (found.name, found.skipped, len(found.sha256)) == ("some", 1, 64)


@pytest.mark.parametrize(
    "spoken",
    [
        [("human", "one?"), ("claude", "1"), ("human", "two?")],  # an unknown speaker
        [("human", "x"), ("system", "y")],
    ],
)
def test_a_shared_conversation_that_cannot_be_sent_whole_is_left_out(tmp_path, spoken):
    talk = {"conversations": [{"from": speaker, "value": text} for speaker, text in spoken]}
    dataset = load_dataset(f"sharegpt:{write(tmp_path / 'x.json', json.dumps([talk, *SHAREGPT]))}")
    assert (len(dataset.conversations), dataset.skipped) == (2, 2)


def test_json_lines(tmp_path: Path) -> None:
    found = load_dataset(f"jsonl:{write(tmp_path / 'some.jsonl', LINES)}")
    assert found.conversations == (
        Conversation((Turn("hello", "hi"),)),
        Conversation((Turn("a\n\nb", "c"), Turn("d", None, 2.5)), "be kind"),
        Conversation((Turn("what is\nthis?"),)),
    )
    assert found.skipped == 2


def test_messages_of_one_role_in_a_row_are_one(tmp_path: Path) -> None:
    spoken = [
        *[("developer", "be kind"), ("system", "be brief"), ("user", "a"), ("user", "b")],
        *[("assistant", "c"), ("assistant", "d"), ("system", " "), ("user", "e")],
    ]
    messages = [{"role": role, "content": text} for role, text in spoken]
    found = load_dataset(f"jsonl:{write(tmp_path / 'x.jsonl', [{'messages': messages}])}")
    whole = Conversation((Turn("a\n\nb", "c\n\nd"), Turn("e")), "be kind\n\nbe brief")
    assert found.conversations == (whole,)


def test_a_byte_order_mark_and_a_developers_message(tmp_path: Path) -> None:
    messages = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "a"}]
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps({"messages": messages}), encoding="utf-8-sig")
    assert load_dataset(f"jsonl:{path}").conversations == (Conversation((Turn("a"),), "be kind"),)
    path.write_text(json.dumps(SHAREGPT), encoding="utf-8-sig")
    assert len(load_dataset(f"sharegpt:{path}").conversations) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": 3}', r"line 2: Expected `str \| null`, got `int`"),
        ('{"prompt": "a"}\n\n{"prompt', "line 3: Input data was truncated"),
        ('{"prompt": "a"}\n{"text": "b"}', "line 2 has no prompt, messages, conversations or turns"),
        ('{"prompt": ""}', "has no prompt and no conversation"),
        ("", "has no prompt and no conversation"),
        ('{"messages": [{"role": "user", "content": "x", "think_s": -1}]}', "Expected `float` >= 0"),
    ],
)
def test_what_is_damaged_is_said(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_dataset(f"jsonl:{write(tmp_path / 'x.jsonl', content)}")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            {"messages": [{"role": "user"}]},
            "line 2: message 1 is the user's and has no content",
            "give it a text",
        ),
        (
            {"messages": [{"role": "system", "content": "x"}, {"role": "User", "content": None}]},
            "line 2: message 2 is the user's and has no content",
            "or leave the message out",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
            "line 2: message 2 is a tool's, and answers no call before it",
            "give it the `tool_call_id`",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "developer", "content": "y"}]},
            "line 2: message 2 is the system's, after a question",
            "move it before the first question",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
            "line 2: `tools` is no list of functions with names",
            "give each as",
        ),
        (
            {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "line 2 has tools and no messages",
            "as `messages`",
        ),
        (
            {"messages": [{"role": "human", "content": "x"}], "tools": [{"function": {"name": "f"}}]},
            "line 2: message 1 is of 'human', and is refused",
            "the roles that are known",
        ),
    ],
)
def test_what_would_be_asked_otherwise_than_meant_is_refused(tmp_path, line, message, hint):
    with pytest.raises(UsageError, match=message) as raised:
        load_dataset(f"jsonl:{write(tmp_path / 'x.jsonl', [{'prompt': 'a'}, line])}")
    assert hint in raised.value.hint


def test_no_tools_are_no_fault(tmp_path: Path) -> None:
    lines = [{"prompt": "a", "tools": tools} for tools in (None, [], "[]")]
    assert len(load_dataset(f"jsonl:{write(tmp_path / 'x.jsonl', lines)}").conversations) == 3


def test_questions_of_a_category(tmp_path: Path) -> None:
    """As MT-Bench has them; a category that is no text is none."""
    lines = [
        {"question_id": 81, "category": "math", "turns": ["a", "b"], "reference": ["1", "2"]},
        {"prompt": "c", "category": ["x"]},
    ]
    first, second = load_dataset(f"jsonl:{write(tmp_path / 'x.jsonl', lines)}").conversations
    assert first == Conversation((Turn("a"), Turn("b")), category="math")
    assert second.category is None


def test_unknown_and_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_DATASETS", raising=False)
    with pytest.raises(UsageError, match="there is no dataset 'news'"):
        load_dataset("news")
    for name, kind in (("own.jsonl", "jsonl"), ("own.json", "sharegpt")):
        path = write(tmp_path / name, LINES)
        with pytest.raises(UsageError, match="is a file, not the name of a dataset") as raised:
            load_dataset(str(path))
        assert raised.value.hint == f"write {kind}:{path}"
    with pytest.raises(UsageError, match="cannot be read"):
        load_dataset(f"jsonl:{tmp_path / 'gone'}")
    load_dataset.cache_clear()
    (tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json").write_text(json.dumps(SHAREGPT))
    monkeypatch.setenv("BENCH_DATASETS", str(tmp_path))
    with pytest.raises(UsageError, match="is not the published dataset sharegpt: sha256"):
        load_dataset("sharegpt")


def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    file.touch()
    os.truncate(file, (4 << 30) + 1)
    with pytest.raises(UsageError, match="over 4 GiB"):
        load_dataset(f"jsonl:{file}")


def test_the_built_in_one_is_varied() -> None:
    """Its digest is pinned in the catalog, so that nobody changes it unnoticed."""
    found = load_dataset("builtin")
    assert len(found.conversations) == 396 and found.licence == "Apache-2.0" and found.skipped == 0
    sizes = sorted(len(conversation.turns[0].question) for conversation in found.conversations)
    assert sizes[0] < 60 and sizes[-1] > 2500
    longer = [conversation for conversation in found.conversations if len(conversation.turns) > 1]
    assert len(longer) > 80 and max(len(conversation.turns) for conversation in longer) >= 5
    assert all(turn.answer for conversation in found.conversations for turn in conversation.turns)
    assert {turn.think_s for conversation in longer for turn in conversation.turns[1:]} > {0.5}
