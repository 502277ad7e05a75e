"""A completion's requests to the engine."""

from __future__ import annotations

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
from roseinfer.tokenizer.detokenizer import NoText


class Engine:
    """Takes three requests, and then stops responding."""

    def __init__(self) -> None:
        self.ids, self.in_flight = count(), set[int]()

    def submit(self, *request: Any) -> int:
        id = next(self.ids)
        if id == 3:
            raise SilentEngineError
        self.in_flight.add(id)
        return id

    def discard(self, id: int) -> None:
        self.in_flight.discard(id)


@pytest.mark.parametrize("kind", [Completion, StreamedCompletion])
def test_an_engine_that_takes_some_of_the_choices(kind: type[Completion]) -> None:
    """They are discarded: their tokens would go to the connection's next answer."""
    engine, prompt = Engine(), np.array([1], np.int32)
    backend: Any = SimpleNamespace(engine=engine, detokenizer=lambda after: NoText(), stream_interval=1)
    connection: Any = SimpleNamespace(received=0.0)
    generation = Generation((prompt,), SamplingParams(2), 5, (), False)
    completion = kind(backend, connection, generation, CompletionFormat("m"), 0.0)
    with pytest.raises(SilentEngineError):
        completion.start([prompt])
    assert next(engine.ids) == 4 and not engine.in_flight
