"""What answers requests: the engine, the tokenizer and the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roseinfer.server.http.errors import HttpError
from roseinfer.server.replicas import Replicas
from roseinfer.tokenizer.chat import ChatTemplate
from roseinfer.tokenizer.detokenizer import Detokenizer, NoText
from roseinfer.tokenizer.token_names import TokenNames
from roseinfer.tokenizer.tokenizer import Tokenizer

_NO_NAMES = TokenNames([], {})


@dataclass(frozen=True)
class Backend:
    """All engine replicas, and the model's tokenizer and chat template. `model`: its name for clients;
    `stream_interval`: tokens in a chunk of a stream."""

    engine: Replicas
    tokenizer: Tokenizer | None
    model: str
    stream_interval: int
    chat_template: ChatTemplate | None

    def other_model(self, name: str) -> HttpError:
        """The error for a request of a model that is not served."""
        message = f"the model {name!r:.100} does not exist; this is {self.model!r}"
        return HttpError(404, message, "model", "model_not_found")

    def detokenizer(self, after: Sequence[int] | NDArray[np.int32] = ()) -> Detokenizer:
        """For the text of a new choice, which follows the text of the tokens `after`."""
        return NoText() if self.tokenizer is None else self.tokenizer.detokenizer(after)

    def names(self) -> TokenNames:
        """How single tokens are written."""
        return _NO_NAMES if self.tokenizer is None else self.tokenizer.names
