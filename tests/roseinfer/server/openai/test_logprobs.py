"""Logprobs of answers and prompts in OpenAI's formats, against the engine's and transformers'."""

from __future__ import annotations

import codecs
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.request.limits import Limits
from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import SamplingParams
from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.generation import MAX_LOGPROBS, Generation
from roseinfer.server.openai.requests import StreamOptions
from roseinfer.server.openai.responses import ChatLogprobs, ChoiceLogprobs, CompletionLogprobs, Logprobs
from roseinfer.tokenizer.token_names import TokenNames
from roseinfer.tokenizer.tokenizer import load_tokenizer
from tests.roseinfer.conftest import TEXT_VOCAB, reference_logits

NEW = 12
TOKENIZER = load_tokenizer("random:gpt2-tiny")


def engine_logprobs(model: Any, prompt: list[int], k: int) -> list[TokenLogprobs]:
    """Return the logprobs that the engine of this process reports for a greedy answer."""
    engine, listed = model.llm.engine, []
    params = SamplingParams(NEW, ignore_eos=True, logprobs=k)
    engine.add(0, np.array(prompt, dtype=np.int32), params)
    while (step := engine.step()) is not None:
        listed.append(step.logprobs.of_requests()[0][1])
    return listed


def expected_of(model: Any, prompt: list[int], k: int, form: type[Logprobs]) -> Any:
    logprobs = ChoiceLogprobs(form, k, model.llm.tokenizer.names)
    detokenizer = model.llm.tokenizer.detokenizer()
    for listed in engine_logprobs(model, prompt, k):
        logprobs.add(listed)
        logprobs.extend(detokenizer.push(listed.tokens[0]))
    return msgspec.to_builtins(logprobs.take())


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The logprobs of all chunks of an answer."""
    return {name: [entry for part in parts for entry in part[name]] for name in parts[0]}


def close(a: Any, b: Any) -> bool:
    """Equal but for rounding, which depends on what else is in the batch."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(close, a, b))
    return abs(a - b) < 1e-4 if isinstance(a, float) else bool(a == b)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("k", [0, 3])
def test_completions(serving: Any, text_model: Any, stream: bool, k: int) -> None:
    """Two prompts, each answered twice, with a request in the batch that asks for none."""
    prompts = [text_model.prompt, text_model.prompt[:7]]
    settings = {"max_tokens": NEW, "ignore_eos": True, "return_token_ids": True, "stream": stream}

    def ask(logprobs: int | None) -> list[Any]:
        choices: list[Any] = serving.complete(prompts, n=2, logprobs=logprobs, **settings).choices
        return choices

    with ThreadPoolExecutor(2) as pool:
        generation, silent = pool.map(ask, (k, None))
    assert all(choice["logprobs"] is None for choice in silent)
    for index in range(4):
        parts = [choice for choice in generation if choice["index"] == index]
        listed = joined([choice["logprobs"] for choice in parts])
        assert close(listed, expected_of(text_model, prompts[index // 2], k, CompletionLogprobs))
        likeliest = [max(top.values()) for top in listed["top_logprobs"]]
        assert listed["token_logprobs"] == likeliest, "it is greedy"
        assert all(len(top) == max(k, 1) for top in listed["top_logprobs"])
        for choice in parts:
            assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_listed_too(serving: Any, text_model: Any, stream: bool) -> None:
    """Every used token is listed; those of the stop string begin at or after the text's end."""
    whole = text_model.text(text_model.answer)
    stop = whole[len(whole) // 2 :][:3]
    reply = serving.complete(
        text_model.prompt, stop=stop, logprobs=0, max_tokens=99, ignore_eos=True, stream=stream,
        return_token_ids=True,
    )  # fmt: skip
    listed = joined([choice["logprobs"] for choice in reply.choices])
    assert reply.text() == whole[: whole.index(stop)]
    assert len(listed["tokens"]) == len(reply.tokens()) == len(listed["text_offset"])
    assert listed["text_offset"][-1] < len(reply.text()) + len(stop)
    assert listed["text_offset"] == sorted(listed["text_offset"])


def answer_logprobs(tokens: list[int], form: type[Logprobs]) -> tuple[Any, str]:
    """Return logprobs of an answer with these tokens, and its text, whatever the model."""
    logprobs, detokenizer = ChoiceLogprobs(form, 2, TOKENIZER.names), TOKENIZER.detokenizer()
    text = ""
    for token in tokens:
        logprobs.add(TokenLogprobs([token, token, 11, 13], [-0.5, -0.5, -1.5, -2.5]))
        more = detokenizer.push(token)
        logprobs.extend(more)
        text += more
    return logprobs.take(), text + detokenizer.finish()


@given(text=st.text(max_size=30))
def test_offsets_are_where_characters_begin(text: str) -> None:
    """Also of a token that begins within a character; the tokens' names distinguish them."""
    assert TOKENIZER is not None and TOKENIZER.vocabulary is not None
    ids = TOKENIZER.encode(text, False).tolist()
    listed, shown = answer_logprobs(ids, CompletionLogprobs)
    start, raw = 0, shown.encode()
    for id, token, offset in zip(ids, listed.tokens, listed.text_offset, strict=True):
        piece = TOKENIZER.vocabulary.token_bytes[id]
        assert offset == len(raw[:start].decode(errors="ignore"))
        assert raw[start:].startswith(piece)
        named = token.encode()
        if named != piece:
            assert codecs.escape_decode(named.removeprefix(b"bytes:"))[0] == piece
        start += len(piece)


@given(tokens=st.lists(st.integers(0, 50300), max_size=40))
def test_bytes_of_a_chat_are_its_text(tokens: list[int]) -> None:
    """Any tokens, malformed UTF-8 too; a special token and ids outside the vocabulary have no bytes."""
    listed, text = answer_logprobs(tokens, ChatLogprobs)
    assert (
        bytes(byte for entry in listed.content for byte in entry.bytes or ()).decode(errors="replace") == text
    )
    for token, entry in zip(tokens, listed.content, strict=True):
        first, *others = entry.top_logprobs
        assert (first.token, first.logprob, first.bytes) == (entry.token, entry.logprob, entry.bytes)
        assert [other.token for other in others] == [","] and entry.logprob == -0.5
        assert (entry.bytes is None) == (token > 50255)
        if token > 50255:
            assert entry.token == ("<|endoftext|>" if token == 50256 else f"token_id:{token}")


def test_tokens_with_equal_names_keep_the_likelier() -> None:
    logprobs = ChoiceLogprobs(CompletionLogprobs, 3, TokenNames([b"a", b"b", b"b"], {}))
    logprobs.add(TokenLogprobs([0, 1, 2, 0], [-3.0, -1.0, -2.0, -3.0]))
    assert msgspec.to_builtins(logprobs.take())["top_logprobs"] == [{"a": -3.0, "b": -1.0}]


@pytest.mark.parametrize(
    ("max_tokens", "logprobs", "echo", "fits"),
    [
        (4096, 1, False, True),  # 128 answers: exactly as many as there may be
        (4097, 1, False, False),
        (4096, 1, True, False),
        (8192, 0, False, True),
        (9000, 0, False, False),
        (9000, None, False, True),
    ],
)
def test_logprobs_that_a_request_gets(max_tokens: int, logprobs: int | None, echo: bool, fits: bool) -> None:
    """Logprobs of streamed tokens are not held."""
    params = SamplingParams(max_tokens, logprobs=logprobs)
    generation = Generation(("",), params, 128, (), False)
    if echo:
        generation = generation.with_echo(only=False)
    limits, prompts = Limits(100, 10_000, 10_000), [np.ones(5, np.int32)]
    streamed = msgspec.structs.replace(generation, stream=StreamOptions())
    assert streamed.fit(limits, prompts) == streamed
    if fits:
        assert generation.fit(limits, prompts) == generation
    else:
        with pytest.raises(BadRequestError, match="stream the answers") as refused:
            generation.fit(limits, prompts)
        assert refused.value.param == "logprobs"


def test_a_chat_without_max_tokens_ends_at_the_last_logprob_that_it_may_have() -> None:
    params = SamplingParams(2**31 - 1, logprobs=20)
    generation = Generation(("",), params, 1, (), False, fills_context=True)
    limits, prompts = Limits(100, 100_000, 100_000), [np.ones(5, np.int32)]
    streamed = msgspec.structs.replace(generation, stream=StreamOptions())
    assert streamed.fit(limits, prompts).params.max_tokens == 99_995
    assert generation.fit(limits, prompts).params.max_tokens == MAX_LOGPROBS // 21 == 49_932
    longer = msgspec.structs.replace(generation, params=msgspec.structs.replace(params, min_tokens=60_000))
    with pytest.raises(BadRequestError, match="stream the answers"):
        longer.fit(limits, prompts)


K = 3


@pytest.fixture(scope="module")
def scored(text_model: Any) -> list[tuple[list[int], list[int], torch.Tensor]]:
    """Prompts, three tokens after each, and the log-probabilities of all that follows the first token."""
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, TEXT_VOCAB - 1, length).tolist() for length in (1, 70, 33)]
    scores = []
    for prompt, answer in zip(prompts, text_model.greedy(prompts, 3), strict=True):
        logits = reference_logits(text_model.folder, prompt + answer)
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


def test_a_prefix_cache_for_one_request_and_chunks(serve, serving, text_model, scored):
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
