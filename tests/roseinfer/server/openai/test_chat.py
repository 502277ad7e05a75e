"""Chats: the model's template makes the prompt from the messages, the answer has OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.generation import from_chat
from roseinfer.server.openai.requests import ChatRequest, parse
from roseinfer.tokenizer.chat import ChatTemplate

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Où es-tu ?"}]


def test_chat(chatting: Any, text_model: Any) -> None:
    def chat(messages: Any, **settings: Any) -> Any:
        body = {"messages": messages, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        return chatting.request("/v1/chat/completions", body | settings)

    prompt = "<|endoftext|>system: Be brief.\n<|endoftext|>user: Où es-tu ?\nassistant: "
    ids = text_model.llm.tokenizer.encode(prompt).tolist()
    (expected,) = text_model.greedy([ids], 12)

    body = chat(TALK, max_tokens=12).json
    (choice,) = body["choices"]
    assert body["object"] == "chat.completion" and body["usage"]["prompt_tokens"] == len(ids)
    assert choice["message"] == {"role": "assistant", "content": text_model.text(expected)}
    assert (choice["token_ids"], choice["finish_reason"]) == (expected, "length")

    chunks = chat(TALK, max_completion_tokens=12, stream=True).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert deltas[0]["role"] == "assistant" and not any("role" in delta for delta in deltas[1:])
    assert "".join(delta["content"] for delta in deltas) == text_model.text(expected)
    assert [id for chunk in chunks for id in chunk["choices"][0]["token_ids"]] == expected

    parts = [{"type": "text", "text": "Be brief."}]
    same = chat([{"role": "system", "content": parts}, TALK[1]], max_tokens=12).json
    assert same["choices"][0]["token_ids"] == expected

    reported = chat(TALK, max_tokens=12, logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]
    chunks = chat(TALK, max_tokens=12, logprobs=True, top_logprobs=2, stream=True).events
    parts = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks]
    assert reported == {"content": [entry for part in parts for entry in part], "refusal": None}
    assert len(reported["content"]) == 12
    for entry in reported["content"]:
        assert (
            entry.keys() == {"token", "logprob", "bytes", "top_logprobs"} and len(entry["top_logprobs"]) == 2
        )
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}
    answered = b"".join(bytes(entry["bytes"]) for entry in reported["content"])
    assert answered.decode(errors="replace") == text_model.text(expected)
    bare = chat(TALK, max_tokens=12, logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert [entry | {"top_logprobs": []} for entry in reported["content"]] == bare

    harmless = {
        "tools": [{"type": "function"}], "tool_choice": "none", "parallel_tool_calls": False, "store": False,
        "metadata": {}, "service_tier": "auto", "modalities": ["text"], "response_format": {"type": "text"},
        "functions": None, "function_call": "auto", "user": "me", "n": None, "logit_bias": None,
    }  # fmt: skip
    same = chat(TALK, max_tokens=12, **harmless).json
    assert same["choices"][0]["token_ids"] == expected

    other = text_model.llm.tokenizer.encode(prompt.replace("assistant", "poet")).tolist()
    spoken = chat(TALK, max_tokens=12, chat_template_kwargs={"speaker": "poet"}).json
    assert spoken["choices"][0]["token_ids"] == text_model.greedy([other], 12)[0]
    refused = chat(TALK, chat_template_kwargs={"messages": []})
    assert (refused.status, refused.json["error"]["param"]) == (400, "chat_template_kwargs")

    whole = chat(TALK).json
    assert whole["usage"]["total_tokens"] == 96, "without a limit, the answer fills the context"

    for messages, words in (
        ([], "empty"),
        ([{"role": "tool", "content": "x"}], "no tools here"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only text"),
        ([{"content": "x"}], "role"),
        ([{"role": "robot", "content": "x"}], "the role 'robot' is none of system,"),
    ):
        refused = chat(messages, max_tokens=2)
        assert refused.status == 400 and words in refused.json["error"]["message"]
    for change in (
        {"tools": [{}]},
        {"tool_choice": "required"},
        {"functions": [{}]},
        {"top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 21},
        {"response_format": {"type": "json_object"}},
    ):
        refused = chat(TALK, **change)
        assert refused.status == 400 and refused.json["error"]["param"] in change
    assert chat(TALK, logprobs=True, top_logprobs=21).json["error"]["message"].startswith("top_logprobs")


def test_model_without_a_template(serving: Any) -> None:
    refused = serving.request("/v1/chat/completions", {"messages": TALK})
    assert refused.status == 400 and "/v1/completions" in refused.json["error"]["message"]


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


def test_tools_are_in_the_prompt_where_the_template_has_them() -> None:
    template = ChatTemplate("{{ tools | tojson if tools else 'none' }} {{ messages[0].content }}", {})
    for tools, expected in (([{"type": "function"}], '[{"type": "function"}] hi'), ([], "none hi")):
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": "none"}
        (prompt,) = from_chat(parse(json.dumps(body).encode(), ChatRequest), template).prompts
        assert prompt == expected
    several = parse(json.dumps(body | {"tools": [{}], "parallel_tool_calls": False}).encode(), ChatRequest)
    assert not from_chat(several, template).calls_tools
    with pytest.raises(BadRequestError, match="parallel_tool_calls"):
        from_chat(msgspec.structs.replace(several, tool_choice="auto"), template)


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
