"""Prompts in answers, with the probabilities that transformers gives them: what evaluations ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.roseinfer.conftest import TEXT_VOCAB

K = 3


@pytest.fixture(scope="module")
def scored(text_model: Any) -> list[tuple[list[int], list[int], torch.Tensor]]:
    """Prompts, three tokens after each, and the log-probabilities of all that follows the first token."""
    reference = AutoModelForCausalLM.from_pretrained(text_model.folder, dtype=torch.float32).eval()
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, TEXT_VOCAB - 1, length).tolist() for length in (1, 70, 33)]
    scores = []
    for prompt, answer in zip(prompts, text_model.greedy(prompts, 3), strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer])).logits[0]
        scores.append((prompt, answer, torch.log_softmax(logits.double(), -1)))
    return scores


def test_logprobs_of_prompts(serving: Any, text_model: Any, scored: list[Any]) -> None:
    logprobs_of_prompts(serving, text_model, scored)


def logprobs_of_prompts(server: Any, text_model: Any, scored: list[Any]) -> None:
    """With and without an answer, several prompts and answers at once, twice, whole and streamed."""
    prompts = [prompt for prompt, _, _ in scored]
    likeliest = [expected.topk(K).values for _, _, expected in scored]
    names = text_model.llm.tokenizer.names
    for max_tokens, stream in ((0, False), (0, True), (3, False), (3, True)):
        fields = {"max_tokens": max_tokens, "echo": True, "logprobs": K, "n": 2, "ignore_eos": True}
        reply = server.complete(prompts, stream=stream, **fields)
        for index in range(6):
            pieces = [choice for choice in reply.choices if choice["index"] == index]
            prompt, answer, expected = scored[index // 2]
            tokens = prompt + answer[:max_tokens]
            assert reply.text(index) == text_model.text(tokens)
            assert pieces[-1]["finish_reason"] == "length"
            listed = {
                name: [value for piece in pieces for value in piece["logprobs"][name]]
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            }
            assert {len(values) for values in listed.values()} == {len(tokens)}
            assert listed["token_logprobs"][0] is listed["top_logprobs"][0] is None
            assert listed["text_offset"] == sorted(listed["text_offset"])
            for place, token in enumerate(tokens[1:]):
                name = names[token]
                assert listed["tokens"][place + 1] == (name.text if name.whole else f"bytes:{name.text}")
                assert abs(listed["token_logprobs"][place + 1] - expected[place, token]) < 1e-3
                top = sorted(listed["top_logprobs"][place + 1].values(), reverse=True)
                assert np.allclose(top[:K], likeliest[index // 2][place], atol=1e-3)
        if not stream:
            usage = reply.json["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (104, 6 * max_tokens)
    assert server.becomes_idle()


def test_a_cache_for_one_request(serve: Any, serving: Any) -> None:
    server = serve("--max-model-len", "40", "--kv-tokens", "40", "--block-size", "8")
    a_prompt_that_fills_the_context(server, serving, 40)


def test_a_prefix_cache_for_one_request_and_chunks(
    serve: Any, serving: Any, text_model: Any, scored: list[Any]
) -> None:
    server = serve(
        "--max-model-len", "80", "--kv-tokens", "80", "--block-size", "8", "--prefix-cache",
        "--chunked-prefill-size", "24", "--prefill-max-tokens", "64",
    )  # fmt: skip
    logprobs_of_prompts(server, text_model, scored)
    a_prompt_that_fills_the_context(server, serving, 80)


def a_prompt_that_fills_the_context(server: Any, serving: Any, context: int) -> None:
    """It can be scored and shown where the cache has room for one, twice and again; one token more is too
    long."""
    prompt = np.random.default_rng(3).integers(0, TEXT_VOCAB - 1, context).tolist()
    fields = {"max_tokens": 0, "echo": True, "n": 2}
    expected = serving.complete(prompt, logprobs=K, **fields).json["choices"][0]["logprobs"]
    for _ in range(2):
        for choice in server.complete(prompt, logprobs=K, **fields).json["choices"]:
            assert choice["finish_reason"] == "length"
            assert choice["logprobs"]["tokens"] == expected["tokens"]
            scores, expected_logprobs = (x["token_logprobs"][1:] for x in (choice["logprobs"], expected))
            assert np.allclose(scores, expected_logprobs, atol=1e-3) and len(scores) == context - 1
        texts = {choice["text"] for choice in server.complete(prompt, **fields).json["choices"]}
        assert len(texts) == 1
    assert server.complete([*prompt, 1], **fields).json["error"]["code"] == "context_length_exceeded"
    assert server.complete(prompt, max_tokens=1, echo=True).status == 400
    assert server.becomes_idle()


def test_a_prompt_that_ends_within_a_character(serving: Any, text_model: Any) -> None:
    """The answer completes it: whole, streamed, with logprobs and after its prompt."""
    *prompt, last = text_model.llm.tokenizer.encode("Où 😀").tolist()
    fields = {"max_tokens": 3, "logit_bias": {str(last): 100}, "ignore_eos": True}
    text = text_model.text([*prompt, last, last, last]).removeprefix("Où ")
    assert text[0] == "😀"
    for settings in ({}, {"logprobs": 0}, {"echo": True, "logprobs": 0}):
        begin = "Où " if "echo" in settings else ""
        for stream in (False, True):
            reply = serving.complete(prompt, stream=stream, **fields, **settings)
            assert reply.text() == begin + text
            if settings:
                offsets = [at for choice in reply.choices for at in choice["logprobs"]["text_offset"]]
                assert offsets[-3:] == [len(begin), len(begin) + 1, len(begin) + 2]


def test_echo_alone_and_its_limits(serving: Any, text_model: Any) -> None:
    for stream in (False, True):
        reply = serving.complete("Où es-tu ?", max_tokens=0, echo=True, stream=stream)
        assert reply.text() == "Où es-tu ?"
    written = "<|endoftext|>Où<|endoftext|>"
    (choice,) = serving.complete(written, max_tokens=0, echo=True, logprobs=0).json["choices"]
    listed = choice["logprobs"]
    assert choice["text"] == written and listed["tokens"][0] == listed["tokens"][-1] == "<|endoftext|>"
    assert listed["text_offset"][:2] == [0, 13] and listed["text_offset"][-1] == 15
    assert serving.complete([1] * 1000, max_tokens=0, echo=True, logprobs=20, n=64).status == 400
    assert serving.complete([1], max_tokens=0).json["error"]["param"] == "max_tokens"
