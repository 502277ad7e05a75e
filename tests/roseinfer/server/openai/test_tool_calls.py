"""Tool calls are taken out of the text of an answer, however it is split."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.server.openai.tool_calls import ToolCalls

ARGUMENTS = '{"path": "a</b", "n": {"deep": [1]}}'
LONG = "b" * 1100
LS = f'{{"name": "ls", "arguments": {ARGUMENTS}}}'


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def read(pieces: list[str], reason: str) -> tuple[str, list[list[str]]]:
    """The text, and each call's name and arguments, of an answer in these pieces."""
    parser, text = ToolCalls(), ""
    calls: dict[Any, list[str]] = {}
    for place, piece in enumerate(pieces, start=1):
        more, parts = parser.push(piece, reason if place == len(pieces) else None)
        text += more
        for part in parts:
            made = calls.setdefault(part.index, ["", ""])
            made[0] += part.function.name or ""
            made[1] += part.function.arguments
    assert list(calls) == [*range(parser.count)]
    return text, [*calls.values()]


ANSWERS = [
    ("Hello <tool", "stop", "Hello <tool", []),
    (f"Hm.\n{call(LS)}", "stop", "Hm.\n", [["ls", ARGUMENTS]]),
    (f"{call(LS)}\n{call(LS)}", "stop", "", [["ls", ARGUMENTS]] * 2),
    (f" {call(LS)}\nAnd:\n{call(LS)}", "stop", " \nAnd:\n", [["ls", ARGUMENTS]] * 2),
    (f"{call(LS)}\n\nIt is all.", "stop", "\n\nIt is all.", [["ls", ARGUMENTS]]),
    (f"<tool_call>{LS}", "stop", "", [["ls", ARGUMENTS]]),
    (f"<tool_call>{LS[:-1]}", "length", "", [["ls", ARGUMENTS]]),
    (call('{"arguments": {"a": 1}, "name": "f"}'), "stop", "", [["f", '{"a": 1}']]),
    (call('{"name": "now"}'), "stop", "", [["now", "{}"]]),
    (call('{"name": "f", "arguments": "x"}'), "stop", call('{"name": "f", "arguments": "x"}'), []),
    (call("no JSON"), "stop", call("no JSON"), []),
    ("<tool_call>\n{", "length", "<tool_call>\n{", []),
    ("Hi <tool_call></tool_call> there", "stop", "Hi <tool_call></tool_call> there", []),
    ("Hi <tool_call>", "length", "Hi <tool_call>", []),
    (f"<tool_call>{LS}", "length", "", [["ls", ARGUMENTS]]),
    (f"{call(LS[:-1])} ", "stop", "", [["ls", ARGUMENTS]]),
    (call(f'{LS[:-1]}, "id": 3}}'), "stop", "", [["ls", ARGUMENTS]]),
    (call('{"name": "f", "arguments": {"a": tru}}'), "stop", "", [["f", '{"a": tru}']]),
    (f"{call(LS[:-2])}Done.", "stop", "Done.", [["ls", ARGUMENTS[:-1]]]),
    (call('{"name": "f", "arguments": {"a": "</tool_call>"}}'), "stop", "", [["f", '{"a": "</tool_call>"}']]),
    (f'<tool_call>{{"name": "f", "arguments": {{"a": "{LONG}', "length", "", [["f", f'{{"a": "{LONG}']]),
]


@pytest.mark.parametrize(("answer", "reason", "text", "calls"), ANSWERS)
@given(cuts=st.sets(st.integers(1, 200)))
def test_calls_of_an_answer(answer: str, reason: str, text: str, calls: Any, cuts: set[int]) -> None:
    assert_calls(answer, cuts, reason, text, calls)


@pytest.mark.parametrize(("answer", "reason", "text", "calls"), ANSWERS)
def test_calls_of_an_answer_that_is_cut_once(answer: str, reason: str, text: str, calls: Any) -> None:
    for cut in range(1, len(answer)):
        assert_calls(answer, {cut}, reason, text, calls)


def assert_calls(answer: str, cuts: set[int], reason: str, text: str, calls: Any) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    pieces = [answer[begin:end] for begin, end in pairwise(ends)]
    left, made = read(pieces, reason)
    assert (left, [[name, arguments.strip()] for name, arguments in made]) == (text, calls), cuts


@pytest.mark.parametrize("begun", ['{"x', '{"name": "f", "arguments": {"a": 1}'])
def test_a_call_without_end_is_not_held_for_ever(begun: str) -> None:
    parser = ToolCalls()
    for piece in (f"<tool_call>{begun}", " " * 70_000, "a"):
        parser.push(piece, None)
    assert parser.push("b", None) == ("b", [])


def test_arguments_come_as_they_are_written() -> None:
    parser = ToolCalls()
    assert parser.push('<tool_call>{"name": "ls", "arguments": ', None) == ("", [])
    _, [named] = parser.push('{"path"', None)
    assert (named.function.name, named.function.arguments) == ("ls", '{"path"')
    _, [more] = parser.push(': "a"}}', None)
    assert (more.index, more.function.arguments) == (0, ': "a"}')
    assert parser.push("</tool_call>", "stop") == ("", [])
    json.loads(named.function.arguments + more.function.arguments)
