"""Messages of a conversation, and their form for the chat template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.generation import from_chat
from roseinfer.server.openai.requests import ChatRequest, parse
from roseinfer.tokenizer.chat import ChatTemplate

TEMPLATE = ChatTemplate(
    "{% for message in messages %}{{ message | tojson(sort_keys=true) }}\n{% endfor %}", {}
)
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": [1, "é"]}'}}


#: As Qwen2.5's and Qwen3's: other roles are left out.
ROLES_OF_ITS_OWN = (
    "{% for message in messages %}{% if (message.role == 'user') or message.role in ['system', 'tool'] %}"
    "{{ message | tojson(sort_keys=true) }}\n{% endif %}{% endfor %}"
)


def rendered(*messages: Any, template: ChatTemplate = TEMPLATE) -> list[Any]:
    """The messages that the template is given."""
    request = parse(json.dumps({"messages": messages}).encode(), ChatRequest)
    (prompt,) = from_chat(request, template).prompts
    assert isinstance(prompt, str)
    return [json.loads(line) for line in prompt.splitlines()]


def test_calls_of_tools() -> None:
    """Templates write the arguments as JSON themselves."""
    talk = (
        {"role": "user", "content": "1 + é?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "function_call": None},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "2", "reasoning_content": "So", "tool_calls": []},
    )
    function = {"name": "add", "arguments": {"a": [1, "é"]}}
    assert rendered(*talk) == [
        {"role": "user", "content": "1 + é?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "2", "reasoning_content": "So"},
    ]
    for arguments in ("", "{}", {}):
        bare = {"function": {"name": "now", "arguments": arguments}}
        (turn,) = rendered({"role": "assistant", "tool_calls": [bare]})
        assert turn["tool_calls"] == [{"type": "function", "function": {"name": "now", "arguments": {}}}]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "of the tool call 'f' are no JSON"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, "are no JSON object"),
        ({"tool_calls": [{"id": "1"}]}, "function"),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "use tool_calls"),
    ],
)
def test_calls_that_are_refused(message: Any, words: str) -> None:
    with pytest.raises(BadRequestError, match=words) as refused:
        rendered({"role": "assistant"} | message)
    assert refused.value.param == "messages"


def test_refusals_of_the_assistant() -> None:
    """Answers of OpenAI have refusals among the parts of a text."""
    parts = [{"type": "text", "text": "Well,"}, {"type": "refusal", "refusal": "no."}]
    assert rendered({"role": "assistant", "content": parts}) == [
        {"role": "assistant", "content": "Well,\nno."}
    ]
    for role, part in (("user", parts[1]), ("assistant", {"type": "refusal", "text": "no"})):
        with pytest.raises(BadRequestError, match="only text"):
            rendered({"role": role, "content": [part]})


def test_roles_that_a_template_does_not_name() -> None:
    talk = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    called = {"role": "function", "name": "add", "content": "'function'"}
    old = ChatTemplate(ROLES_OF_ITS_OWN, {})
    new = ChatTemplate(ROLES_OF_ITS_OWN.replace("'tool'", '"developer", "function"'), {})
    assert rendered(*talk, template=old) == [talk[0] | {"role": "system"}, talk[1]]
    assert rendered(*talk, called, template=new) == [*talk, called]
    with pytest.raises(BadRequestError, match="has no role 'function'; use 'tool'") as refused:
        rendered(*talk, called, template=old)
    assert refused.value.param == "messages"
