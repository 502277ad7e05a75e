"""Token counts of texts and conversations, by a model's own tokenizer and chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from harness.errors import EngineError, UsageError

#: What rosemodels fills a vocabulary with.
_FILLER = re.compile(r"(<[1-9][0-9]*>)")
#: Characters of a text that is likely to come again: what one token says.
LONGEST_WORD = 32
#: Words that most tokenizers have as one token.
COMMON_WORDS = tuple(Path(__file__).with_name("common_words.txt").read_text().split())


def load_tokenizer(model: Path) -> Tokenizer | None:
    """The tokenizer in the model's folder, for whole texts; None where it has no tokenizer.json.

    Raises UsageError where that cannot be read.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        return None
    file = path.stat()
    return _read(path, file.st_ino, file.st_mtime_ns, file.st_size)


@lru_cache(2)
def _read(path: Path, *version: int) -> Tokenizer:
    """Once for each version of the file: a large one takes a second."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more special
        raise UsageError(f"{path} cannot be read: {error}", "restore the file") from None
    tokenizer.no_truncation()  # the file may have settings of the training
    tokenizer.no_padding()
    return tokenizer


@lru_cache(2)
def whole_ends(tokenizer: Tokenizer) -> NDArray[np.int32] | None:
    """Find for each token the one to end a prompt with: itself, if its text ends with a whole character.

    Returns (vocabulary,) token ids, of others the next one whose text does, as for a part of a character or a
    special token; None where no token's text does.

    A prompt that ends within a character comes back: servers that decode it together with what follows
    (vLLM, by the DecodeStream of tokenizers) send the text of all of it with the first token.
    """
    texts = tokenizer.decode_batch([[token] for token in range(tokenizer.get_vocab_size())])
    whole = np.flatnonzero([bool(text) and not text.endswith("\ufffd") for text in texts]).astype(np.int32)
    if not whole.size:
        return None
    return whole[np.searchsorted(whole, np.arange(len(texts))) % len(whole)]


def token_counter(model: Path) -> Callable[[str], int] | None:
    """Counts the tokens of a text; None where the model's folder has no tokenizer.json.

    A word `<N>` that is token N is one: a made model says it, but its tokenizer makes several tokens of it.
    """
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        return None

    vocabulary = tokenizer.get_vocab()

    def count(text: str) -> int:
        length, rest = 0, [""]
        for piece in _FILLER.split(text):
            if _FILLER.fullmatch(piece) and vocabulary.get(piece) == int(piece[1:-1]):
                length += 1
                rest.append("")
            else:
                rest[-1] += piece
        return length + sum(map(len, tokenizer.encode_batch_fast(rest, add_special_tokens=False)))

    of_word = lru_cache(1 << 17)(count)  # as many as vocabularies have
    return lambda text: of_word(text) if len(text) <= LONGEST_WORD else count(text)


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
