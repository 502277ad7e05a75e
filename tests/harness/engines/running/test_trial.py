"""What a running server takes is found out by asking it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import RequestSettings
from harness.engines.prompts import Lengths
from harness.engines.running.trial import Trial
from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.models.model_folder import resolve
from harness.models.text_tokens import ChatTemplate
from harness.workload import Message, PlannedRequest, warmup

pytestmark = pytest.mark.integration

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>: {{ message['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>:{% endif %}"
)


@pytest.fixture
def adapt(shared_mock: Any) -> Callable[..., RequestSettings]:
    """Settings as a mock server of that behaviour takes them."""

    def make(settings: dict[str, Any], **behaviour: Any) -> RequestSettings:
        defaults = {"tokenizer": None, "served_name": "mock", "body": {"behaviour": behaviour}}
        trial = Trial(Target("127.0.0.1", shared_mock.port, "/v1/completions"), OpenAI().encoder, pauses_s=())
        return trial.adapted(RequestSettings(**defaults | settings))

    return make


@pytest.fixture
def with_template(tmp_path: Path) -> Path:
    """Folder of a tokenizer with a chat template that trims, as that of Llama 3."""
    model, folder = resolve("random:gpt2-tiny").path, tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(model / "tokenizer.json", folder)
    config = json.loads((model / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("refused", "left_out", "fixed", "text"),
    [
        ([], set(), True, False),
        (["ignore_eos"], set(), False, False),
        (["return_token_ids"], {"return_token_ids"}, True, False),
        (["repetition_penalty"], {"repetition_penalty"}, True, False),
        (["repetition_penalty", "ignore_eos"], {"repetition_penalty"}, False, False),
        (["prompt"], set(), True, True),
        (["temperature", "ignore_eos"], {"temperature"}, False, False),
        (["return_token_ids", "prompt", "seed"], {"return_token_ids", "seed"}, True, True),
    ],
)
def test_no_more_is_left_out_than_is_refused(adapt, refused, left_out, fixed, text, named):
    """Whether the server's message names the field or not."""
    accepted = adapt({}, refuses=refused, names_field=named)
    assert (accepted.left_out, accepted.ignore_eos, accepted.text) == (left_out, fixed, text)


@pytest.mark.parametrize("status", [429, 500])
def test_a_request_that_fails_once_says_nothing_of_its_fields(start_mock, tmp_path, status):
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"status": status}, *[{}] * 20]))
    port = start_mock("--script", str(script)).port
    trial = Trial(Target("127.0.0.1", port, "/v1/completions"), OpenAI().encoder, pauses_s=(0.0,))
    assert not trial.adapted(RequestSettings(tokenizer=None, served_name="mock")).left_out


def test_what_the_user_asked_for_is_not_left_out(adapt: Any) -> None:
    accepted = adapt({"user_fields": {"temperature": 0.5}}, refuses=["top_k", "ignore_eos"])
    assert (accepted.left_out, accepted.ignore_eos) == ({"top_k"}, False)
    with pytest.raises(EngineError, match="temperature"):
        adapt({"user_fields": {"temperature": 0.5}}, refuses=["temperature"])


def test_a_chat_has_a_template_and_may_have_another_name_for_its_limit(adapt: Any) -> None:
    """The server counts the template, unless it sends no usage."""
    assert adapt({"endpoint": "chat"}, refuses=["max_tokens"]).limit_field == "max_completion_tokens"
    assert adapt({"endpoint": "chat"}, template_tokens=23).lengths == Lengths(23, 1.0, True)
    assert adapt({"text": True}).lengths == Lengths(0, 1.0, True)
    assert not adapt({"endpoint": "chat"}, usage="none").lengths.exact


def test_words_of_unknown_tokens_have_the_length_asked_for(adapt: Any) -> None:
    """Less than a word a token is left of the plan where a template takes some."""
    encode = OpenAI().encoder(adapt({"endpoint": "chat"}, template_tokens=23))
    for request in warmup([(64, 8)] * 3, 32_000, seed=5):
        words = json.loads(encode(request))["messages"][0]["content"].split()
        assert (len(words), encode.input_tokens(request)) == (64 - 23, 64)
    [short] = warmup([(10, 8)], 32_000, seed=5)
    assert encode.input_tokens(short) == 24


def test_a_server_that_cuts_long_texts_is_held_to_their_length(start_mock, tmp_path: Path) -> None:
    """Of the text of all words it counts 100 fewer than there are."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{}, {}, {}, {"prompt_off_by": -100}]))
    target = Target("127.0.0.1", start_mock("--script", str(script)).port, "/v1/completions")
    settings = RequestSettings(tokenizer=None, served_name="mock", endpoint="chat")
    assert Trial(target, OpenAI().encoder, pauses_s=()).adapted(settings).lengths == Lengths(0, 1.0, True)


def test_a_chat_of_a_known_tokenizer_has_the_length_asked_for(with_template: Path) -> None:
    """The template included."""
    tokenizer = AutoTokenizer.from_pretrained(with_template)
    encode = OpenAI().encoder(RequestSettings(with_template, "m", endpoint="chat"))
    for request in warmup([(90, 8)] * 3, 50_257, seed=5):
        text = tokenizer.apply_chat_template(
            json.loads(encode(request))["messages"], tokenize=False, add_generation_prompt=True
        )
        assert len(tokenizer.encode(text, add_special_tokens=False)) == 90 == encode.input_tokens(request)


def test_another_template_than_the_tokenizers_is_an_offset(adapt: Any, with_template: Path) -> None:
    """The mock server counts words and 23 more; so does the tokenizer, but for its own template."""
    own = ChatTemplate(with_template).tokens([{"role": "user", "content": "the and that"}]) - 3
    accepted = adapt({"endpoint": "chat", "tokenizer": with_template}, template_tokens=23)
    assert accepted.lengths == Lengths(23 - own, 1.0, True)


def test_what_another_template_adds_to_a_system_message_is_not_known(with_template: Path) -> None:
    """It may add a system message of its own only where there is none, as that of SmolLM2 does."""
    user: Message = {"role": "user", "content": "hi"}
    system: Message = {"role": "system", "content": "brief"}
    for messages in ((user,), (system, user)):
        planned = PlannedRequest(0, None, np.zeros(0, np.int32), 4, messages=messages)
        count = ChatTemplate(with_template).tokens(messages)
        settings = RequestSettings(with_template, "m", endpoint="chat")
        assert OpenAI().encoder(settings).input_tokens(planned) == count
        other = OpenAI().encoder(replace(settings, lengths=Lengths(-1, 1.0, True)))
        assert other.input_tokens(planned) == (None if system in messages else count - 1)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [({"refuses": ["model"]}, "takes no request: Unexpected value of model"), ({"status": 503}, "503")],
)
def test_a_server_that_answers_nothing_says_why(adapt: Any, behaviour: dict[str, Any], why: str) -> None:
    with pytest.raises(EngineError, match=why):
        adapt({}, **behaviour)
