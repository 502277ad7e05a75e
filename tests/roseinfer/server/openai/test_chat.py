"""`/v1/chat/completions`: the model's template makes the prompt, the answer has OpenAI's shape."""

from __future__ import annotations

from typing import Any

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
