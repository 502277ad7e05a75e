"""Text prompts have exactly the number of tokens that was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.engines.base import Encoder
from harness.engines.prompts import AS_COUNTED, TextPrompts, Words, text_prompts
from harness.errors import EngineError
from harness.models.model_folder import resolve
from harness.models.text_tokens import COMMON_WORDS
from harness.workload import PlannedRequest


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve("random:gpt2-tiny").path


@pytest.fixture(scope="module")
def prompts(model: Path) -> TextPrompts:
    return text_prompts(model)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@given(ids=st.lists(st.integers(0, 50_256), min_size=1, max_size=300))
def test_as_many_tokens_as_ids(prompts: TextPrompts, tokenizer: Tokenizer, ids: list[int]):
    assert len(tokenizer.encode(prompts.of(ids)).ids) == len(ids)


def test_shared_prefixes_stay_shared(prompts: TextPrompts):
    prefix = list(range(1000, 1040))
    assert prompts.of([*prefix, 5]).startswith(prompts.of(prefix))
    assert prompts.of([1, 2, 3]) != prompts.of([4, 5, 6])


@given(ids=st.lists(st.integers(0, 50_256), min_size=1, max_size=300))
def test_ids_that_stand_for_themselves_are_written_as_they_are(prompts: TextPrompts, ids: list[int]):
    same = prompts.tokens(ids)
    assert prompts.of(same) == prompts.of(ids)
    assert prompts.tokens(same) == same


def test_a_model_without_tokenizer(tmp_path: Path):
    with pytest.raises(EngineError, match=r"tokenizer\.json"):
        text_prompts(tmp_path)


def test_texts_of_many_prompts_are_not_held() -> None:
    prompts = np.random.default_rng(0).integers(0, 1000, (40, 12)).astype(np.int32)
    requests = [PlannedRequest(index, None, prompt, 8) for index, prompt in enumerate(prompts)]
    held = Words("chat", None, AS_COUNTED)
    expected = [held.fields(request) for request in requests]
    words = Words("chat", None, AS_COUNTED, most=10)
    assert [words.fields(request) for request in requests * 2] == expected * 2
    assert len(words._texts) <= 10 < len(held._texts)


def test_tools_in_the_form_of_each_api() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    called = [{"id": f"c{i}", "type": "function", "function": {"name": "ls", "arguments": '{"path":"."}'}}
              for i in (1, 2)]  # fmt: skip
    messages: tuple[Any, ...] = (
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
        {"role": "assistant", "content": "hm", "tool_calls": called[:1]},
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": called},
        *({"role": "tool", "tool_call_id": f"c{i}", "content": "b"} for i in (1, 2)),
    )  # fmt: skip
    tools = tuple(
        {"type": "function", "function": {"name": "ls", **more}} for more in ({"parameters": schema}, {})
    )
    request = PlannedRequest(0, None, np.array([], np.int32), 8, messages=messages, tools=tools)
    chats = Words("chat", None, AS_COUNTED)
    assert chats.fields(request) == {"messages": messages, "tools": tools}
    forced = Encoder({"tool_choice": "required"}, chats, lambda tokens: {})
    assert b'"tool_choice"' in forced(request) and b'"tool_choice"' not in forced(replace(request, tools=()))
    items = [{"type": "function_call", "call_id": f"c{i}", "name": "ls", "arguments": '{"path":"."}'}
             for i in (1, 2)]  # fmt: skip
    outputs = [{"type": "function_call_output", "call_id": f"c{i}", "output": text}
               for i, text in ((1, "a"), (1, "b"), (2, "b"))]  # fmt: skip
    assert Words("responses", None, AS_COUNTED).fields(request) == {
        "input": [
            *messages[:2], {"role": "assistant", "content": "hm"}, items[0], outputs[0], *items, *outputs[1:],
        ],
        "tools": (
            {"type": "function", "name": "ls", "parameters": schema}, {"type": "function", "name": "ls"}
        ),
    }  # fmt: skip
    uses = [{"type": "tool_use", "id": f"c{i}", "name": "ls", "input": {"path": "."}} for i in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"c{i}", "content": text}
               for i, text in ((1, "a"), (1, "b"), (2, "b"))]  # fmt: skip
    assert Words("messages", None, AS_COUNTED).fields(request) == {
        "system": "s",
        "messages": [
            messages[1],
            {"role": "assistant", "content": [{"type": "text", "text": "hm"}, uses[0]]},
            {"role": "user", "content": results[:1]},
            {"role": "assistant", "content": uses},
            {"role": "user", "content": results[1:]},
        ],
        "tools": (
            {"name": "ls", "input_schema": schema}, {"name": "ls", "input_schema": {"type": "object"}}
        ),
    }  # fmt: skip


@pytest.mark.parametrize("before", ["", " "])
def test_a_common_word_is_one_token_also_at_the_beginning(tokenizer: Tokenizer, before: str):
    lengths = {word: len(tokenizer.encode(before + word).ids) for word in COMMON_WORDS}
    assert {word for word, length in lengths.items() if length > 1} == set()
