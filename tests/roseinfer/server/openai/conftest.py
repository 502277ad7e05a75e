"""A server whose model has a chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.roseinfer.server.conftest import Serving, start

TEMPLATE = """{%- for message in messages %}
{{- bos_token + message.role + ': ' + message.content + '\\n' }}
{%- if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ (speaker or 'assistant') + ': ' }}{% endif %}"""


@pytest.fixture(scope="session")
def chatting(
    text_model: Any, integration: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """One server for all tests that leave it alive; its context has 96 tokens."""
    folder = shutil.copytree(text_model.folder, tmp_path_factory.mktemp("chatting") / "chat")
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<|endoftext|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = Serving(start(str(folder), "--max-model-len", "96"))
    yield server
    server.close()
