"""A model's chat template: how many tokens a conversation has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EngineError


class ChatTemplate:
    """Counts the tokens of a conversation with the template in front of the answer.

    Raises:
        EngineError: the model's folder has no tokenizer or no template, or it cannot be read.
    """

    def __init__(self, model: Path) -> None:
        try:
            from transformers import AutoTokenizer  # a second to import, which only chats need
        except ImportError:
            raise EngineError(
                "chat templates are read by transformers, which is not installed",
                "pip install 'rosebench[roseinfer]'",
            ) from None

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
        except Exception as error:  # the package tokenizers raises nothing more special
            reason = str(error).partition("\n")[0]
            raise _fault(f"the tokenizer in {model} cannot be read: {reason}") from None
        if not self._tokenizer.chat_template:
            raise _fault(f"the model in {model} has no chat template")

    def tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the whole prompt of an answer to `messages`. Raises EngineError."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # Jinja's own, and whatever a template raises
            raise _fault(f"the chat template refuses the messages: {error}") from None
        return len(self._tokenizer.encode(text, add_special_tokens=False))


def _fault(message: str) -> EngineError:
    hint = (
        "use a model with a chat template, such as smollm2-135m, --tokenizer none for a running server, or "
        "--endpoint completions"
    )
    return EngineError(message, hint, new_run=True)
