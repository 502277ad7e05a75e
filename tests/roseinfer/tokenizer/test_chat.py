"""Templates against transformers, which defines how they are rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from roseinfer.config import ConfigError
from roseinfer.tokenizer.chat import ChatError, ChatTemplate
from roseinfer.tokenizer.tokenizer import load_tokenizer

TALK = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Où <b> {{ 7 }}?"},
    {"role": "assistant", "content": "Here."},
    {"role": "user", "content": "Why?"},
]
CHATML = (
    "{% for message in messages %}\n    {{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim"
    " + '<|im_end|>' + '\n'}}\n{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
LOOPS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "[{{ m | tojson }}]{{ m.content.split(' ')[-1] }}{% if loop.last %}{% break %}{% endif %}{% endfor %}"
)


TRAINING = (
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n"
    "{{ m | tojson(separators=(',', ':'), sort_keys=true) }}{{ m | tojson(ensure_ascii=true, indent=1) }}"
    "{% endfor %}"
)


VARIABLES = (
    "{{ bos_token }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ documents | length }}{{ names | tojson }}"
)


@pytest.mark.parametrize("source", [CHATML, LOOPS, TRAINING])
def test_renders_as_transformers_does(source: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer("random:gpt2-tiny")
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.library, bos_token="<|endoftext|>", chat_template=source
    )
    theirs.save_pretrained(tmp_path)
    ours = ChatTemplate.load(tmp_path)
    assert ours.render(TALK) == theirs.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)


def test_variables_of_a_request(tmp_path: Path) -> None:
    tokenizer = load_tokenizer("random:gpt2-tiny")
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.library, chat_template=VARIABLES)
    theirs.save_pretrained(tmp_path)
    ours = ChatTemplate.load(tmp_path)
    variables = {"enable_thinking": False, "names": ["a", {"b": 1}], "bos_token": "<s>", "documents": [{}]}
    rendered = ours.render(TALK, variables)
    assert rendered == '<s><think></think>1["a", {"b": 1}]'
    assert rendered == theirs.apply_chat_template(
        TALK, tokenize=False, add_generation_prompt=True, **variables
    )
    for name in ("messages", "add_generation_prompt"):
        with pytest.raises(ChatError, match=name) as refused:
            ours.render(TALK, {name: []})
        assert refused.value.field == "chat_template_kwargs"


@pytest.mark.parametrize("listed", [{}, {"added_tokens_decoder": {}}])
def test_special_tokens_of_either_file(tmp_path: Path, listed: dict[str, object]) -> None:
    """The map counts only where no added tokens are listed, like in transformers."""
    tokenizer = load_tokenizer("random:gpt2-tiny")
    source = "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ messages | length }}"
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": {"image_token": "<image>"}}
    config = {**kind, "chat_template": source, "bos_token": "<s>", **listed}
    tokenizer.library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    rendered = ChatTemplate.load(tmp_path).render(TALK)
    assert rendered == AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(TALK, tokenize=False)


def test_templates_cannot_reach_out() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.clear() }}", "{{ messages[0].nothing.deep }}"):
        with pytest.raises(ChatError):
            ChatTemplate(source, {}).render(TALK)


def test_a_tool_call_that_is_too_deep_to_be_written() -> None:
    """A parser may take what an encoder does not."""
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ChatError, match="recursion"):
        ChatTemplate("{{ messages | tojson }}", {}).render([{"role": "assistant", "tool_calls": deep}])


def test_folders(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    several = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]
    config.write_text(json.dumps({"chat_template": several}))
    named = ChatTemplate.load(tmp_path)
    assert named is not None and named.render(TALK) == "a"
    for broken in ("{", '{"chat_template": "{% if %}"}', '{"chat_template": [1]}', "[]"):
        config.write_text(broken)
        with pytest.raises(ConfigError, match="chat template"):
            ChatTemplate.load(tmp_path)
