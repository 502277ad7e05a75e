"""Answers of a real server against the same engine in this process, and of an engine that stops."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from roseinfer.request.params import SamplingParams
from roseinfer.server.http.errors import SilentEngineError
from roseinfer.server.openai.completion import Completion
from roseinfer.server.openai.generation import Generation
from roseinfer.server.openai.responses import CompletionFormat
from roseinfer.server.openai.stream import StreamedCompletion
from roseinfer.tokenizer.detokenizer import ByteDetokenizer, Vocabulary
from tests.roseinfer.conftest import TEXT_VOCAB

NEW = 24
#: Usage of the model's prompt; it says that nothing came from a cache where there is none, too.
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": NEW,
    "total_tokens": 20 + NEW,
    "prompt_tokens_details": {"cached_tokens": 0},
}


def test_whole_answer(serving: Any, text_model: Any) -> None:
    reply = serving.complete(text_model.prompt, max_tokens=NEW, ignore_eos=True, return_token_ids=True)
    body = reply.json
    (choice,) = body["choices"]
    assert (reply.status, body["object"], body["model"]) == (200, "text_completion", "tiny")
    assert choice["token_ids"] == text_model.answer
    assert choice["text"] == text_model.text(text_model.answer)
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert body["usage"] == USAGE
    (bare,) = serving.complete(text_model.prompt).choices
    assert set(bare) == {"index", "text", "logprobs", "finish_reason"}, "no more unless it is asked for"


def test_text_prompt(serving: Any, text_model: Any) -> None:
    text = "The quick brown fox — été"
    ids = text_model.llm.tokenizer.encode(text).tolist()
    reply = serving.complete(text, max_tokens=8, ignore_eos=True, return_token_ids=True)
    assert [reply.tokens()] == text_model.greedy([ids], 8)
    assert reply.json["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize(
    "options",
    [
        None, {"include_usage": None, "include_obfuscation": False}, {"include_usage": True},
        {"continuous_usage_stats": True},
    ],
)  # fmt: skip
def test_stream(serving: Any, text_model: Any, options: dict[str, bool] | None) -> None:
    reply = serving.complete(
        text_model.prompt, max_tokens=NEW, ignore_eos=True, return_token_ids=True,
        stream=True, stream_options=options,
    )  # fmt: skip
    chunks = reply.events
    if options == {"include_usage": True}:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"] == USAGE
        assert all(chunk["usage"] is None for chunk in chunks)
    elif options == {"continuous_usage_stats": True}:
        count = 0
        for chunk in chunks:
            count += len(chunk["choices"][0]["token_ids"])
            assert chunk["usage"]["completion_tokens"] == count
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert reply.tokens() == text_model.answer and reply.text() == text_model.text(text_model.answer)
    reasons = [choice["finish_reason"] for choice in reply.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len(chunks) > NEW / 2, "tokens leave as they are made"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_metrics(serving: Any, text_model: Any, stream: bool, stopped: bool) -> None:
    """Usage is the same whether the engine ends the answer or a stop string does."""
    stop = text_model.text(text_model.answer[:3])[-1] if stopped else None
    reply = serving.complete(
        text_model.prompt, max_tokens=4, ignore_eos=True, return_metrics=True, stream=stream, stop=stop
    )
    metrics = reply.choices[-1]["metrics"]
    assert metrics["queue_wait_ms"] >= 0 and metrics["prefill_ms"] > 0 and metrics["generation_time_ms"] > 0
    assert math.isclose(
        metrics["time_to_first_token_ms"], metrics["queue_wait_ms"] + metrics["prefill_ms"], abs_tol=1e-6
    )


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_answers_of_each(serving: Any, text_model: Any, stream: bool) -> None:
    prompts = [text_model.prompt, text_model.prompt[:7], text_model.prompt[3:4]]
    expected = [answer for answer in text_model.greedy(prompts, 6) for _ in range(2)]
    reply = serving.complete(
        prompts, n=2, max_tokens=6, ignore_eos=True, return_token_ids=True, stream=stream,
        stream_options={"include_usage": True} if stream else None,
    )  # fmt: skip
    assert stream or [choice["index"] for choice in reply.choices] == list(range(6))
    assert [reply.tokens(index) for index in range(6)] == expected
    assert reply.chunks[-1]["usage"] == {
        **USAGE,
        "prompt_tokens": 28,
        "completion_tokens": 36,
        "total_tokens": 64,
    }


def test_answers_of_one_sampled_prompt_differ(serving: Any, text_model: Any) -> None:
    reply = serving.complete(text_model.prompt, n=4, seed=1, temperature=1, return_token_ids=True)
    assert len({tuple(reply.tokens(index)) for index in range(4)}) == 4
    settings = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    unseeded = serving.complete([[5, 6, 7]] * 3, n=2, **settings)
    assert len({tuple(unseeded.tokens(index)) for index in range(6)}) == 6


@pytest.mark.parametrize("seed", [5, 2**64 - 1])
def test_each_prompt_of_a_list_is_answered_as_alone(serving: Any, seed: int) -> None:
    """With a seed: it counts up over the `n` choices of each prompt, as in vLLM."""
    settings = {"seed": seed, "temperature": 1.0, "max_tokens": 6, "n": 2, "return_token_ids": True}
    prompts = [[5, 6, 7], [9] * 20, [5, 6, 7]]
    alone = [serving.complete(prompt, ignore_eos=True, **settings) for prompt in prompts]
    expected = [reply.tokens(index) for reply in alone for index in range(2)]
    together = serving.complete(prompts, ignore_eos=True, **settings)
    assert [together.tokens(index) for index in range(6)] == expected
    first, second = expected[:2]
    assert first != second
    after = settings | {"seed": (seed + 1) % 2**64, "n": 1}
    assert serving.complete(prompts[0], ignore_eos=True, **after).tokens() == second


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(serving: Any, text_model: Any, stream: bool) -> None:
    """The text ends before the first stop string, wherever tokens begin; the engine lets go."""
    text = text_model.text(text_model.answer)
    stop = text[len(text) // 2 :][:3]
    settings = {"max_tokens": 900, "ignore_eos": True, "stream": stream}
    reply = serving.complete(text_model.prompt, stop=["never met \x00" * 23, stop], **settings)
    assert reply.text() == text[: text.index(stop)]
    assert reply.choices[-1]["finish_reason"] == "stop"
    assert serving.becomes_idle()


def test_stop_strings_do_not_count_before_min_tokens(serving: Any, text_model: Any) -> None:
    first = text_model.text(text_model.answer[:1])
    settings = {"max_tokens": 8, "ignore_eos": True, "stop": first}
    stopped = serving.complete(text_model.prompt, **settings)
    assert stopped.text() == "" and stopped.choices[-1]["finish_reason"] == "stop"
    longer = serving.complete(text_model.prompt, min_tokens=3, **settings)
    assert longer.text().startswith(text_model.text(text_model.answer[:3]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_that_min_tokens_cuts_counts(serving: Any, text_model: Any, stream: bool) -> None:
    """It begins in the text of the first `min_tokens` tokens and ends after: the text ends before it."""
    at = next(
        at for at in range(2, 9) if all(text_model.text(text_model.answer[k : k + 1]) for k in (at - 1, at))
    )
    before, cut = (text_model.text(text_model.answer[:count]) for count in (at, at + 1))
    assert cut.startswith(before) and len(before) < len(cut)
    stop = cut[len(before) - 1 : len(before) + 1]
    settings = {"max_tokens": 24, "ignore_eos": True, "stop": stop, "min_tokens": at, "stream": stream}
    reply = serving.complete(text_model.prompt, **settings)
    assert reply.text() == before[:-1]
    assert reply.choices[-1]["finish_reason"] == "stop"


def test_end_of_text_and_min_tokens(serving: Any, text_model: Any) -> None:
    def run(**settings: Any) -> tuple[list[int], str]:
        reply = serving.complete(text_model.prompt, max_tokens=NEW, return_token_ids=True, **settings)
        assert reply.json["usage"]["completion_tokens"] == len(reply.tokens())
        return reply.tokens(), reply.choices[0]["finish_reason"]

    at = text_model.eos_at
    assert run() == (text_model.answer[: at + 1], "stop")
    assert run(ignore_eos=True) == (text_model.answer, "length")
    assert len(run(min_tokens=at + 2)[0]) >= at + 2


def test_64_clients_each_get_their_own_tokens(serving: Any, text_model: Any) -> None:
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, TEXT_VOCAB, rng.integers(1, 200)).tolist() for _ in range(64)]
    expected = text_model.greedy(prompts, 16)
    assert len({tuple(answer) for answer in expected}) > 32

    def client(index: int) -> list[int]:
        settings = {"max_tokens": 16, "ignore_eos": True, "return_token_ids": True}
        tokens: list[int] = serving.complete(prompts[index], stream=index % 2 == 0, **settings).tokens()
        return tokens

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(client, range(64))) == expected
    assert serving.becomes_idle()


def test_models_and_server_info(serving: Any, text_model: Any) -> None:
    (card,) = serving.request("/v1/models").json["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 1024)
    info = serving.request("/server_info").json
    assert info["settings"]["dtype"] == "float32" and info["settings"]["model"] == str(text_model.folder)
    assert info["load"].keys() == {
        "running", "waiting", "kv_usage", "preemptions", "prompt_tokens", "cached_tokens", "inflight",
        "expert_skew", "drafts", "step_cost_error",
    }  # fmt: skip
    assert serving.request("/health").status == 200


def test_penalties_and_stop_tokens(serving: Any, text_model: Any) -> None:
    """The engine's tokens are returned; a stop token is listed, and adds no text."""
    how = {"repetition_penalty": 1.4, "presence_penalty": 1.5, "frequency_penalty": -0.5, "min_p": 0.2}
    bias = {str(text_model.answer[0]): -100, "77": 5}
    for settings in (how | {"temperature": 0.0}, how | {"temperature": 0.8, "seed": 3, "stream": True}):
        fields = {"logit_bias": bias, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
        tokens = serving.complete(text_model.prompt, **fields, **settings).tokens()
        sampling: dict[str, Any] = {name: value for name, value in settings.items() if name != "stream"}
        biases = tuple((int(token), value) for token, value in bias.items())
        params = SamplingParams(20, ignore_eos=True, logit_bias=biases, **sampling)
        assert tokens == text_model.llm.generate([text_model.prompt], params)[0] != text_model.answer[:20]
    answer = text_model.answer
    for stream in (False, True):
        reply = serving.complete(
            text_model.prompt, max_tokens=20, ignore_eos=True, stop_token_ids=[answer[4]], stream=stream,
            return_token_ids=True, logprobs=0,
        )  # fmt: skip
        end = answer.index(answer[4])
        assert reply.text() == text_model.text(answer[:end])
        assert reply.tokens() == answer[: end + 1]
        assert reply.choices[-1]["finish_reason"] == "stop"


class Engine:
    """Takes the first three choices, and then stops responding."""

    def __init__(self) -> None:
        self.ids, self.in_flight = count(), set[int]()

    def submit(self, prompt: Any, params: SamplingParams, receivers: list[Any], *others: Any) -> list[int]:
        ids = [next(self.ids) for _ in receivers]
        if 3 in ids:
            raise SilentEngineError
        self.in_flight.update(ids)
        return ids

    def discard(self, id: int) -> None:
        self.in_flight.discard(id)


@pytest.mark.parametrize("kind", [Completion, StreamedCompletion])
def test_an_engine_that_takes_some_of_the_prompts(kind: type[Completion]) -> None:
    """They are discarded: their tokens would go to the connection's next answer."""
    engine, prompt = Engine(), np.array([1], np.int32)
    backend: Any = SimpleNamespace(
        engine=engine, detokenizer=lambda after: ByteDetokenizer(Vocabulary([])), stream_interval=1
    )
    connection: Any = SimpleNamespace(received=0.0)
    generation = Generation((prompt,) * 3, SamplingParams(2), 2, (), False)
    completion = kind(backend, connection, generation, CompletionFormat("m"), 0.0)
    with pytest.raises(SilentEngineError):
        completion.start([prompt] * 3)
    assert next(engine.ids) == 4 and not engine.in_flight
