"""Prompts and lengths of requests, whatever the times at which they are sent."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.schema.setting_types import Uniform, lengths_text, most
from harness.traces import sampling
from harness.workload.planned_requests import UNTIMED, PlannedRequest, distinct_requests

Ints = NDArray[np.int64]

#: Streams of the seed of a load's shape; 0 is that of the times.
INPUTS, OUTPUTS = 1, 2


class Content(ABC):
    """Prompts and the lengths of answers."""

    @abstractmethod
    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        """Plan `n` requests without a time, those after the first `first`.

        Args:
            seed: Seed of random token ids.
            shape_seed: Seed of lengths and order, the same for every engine.
        """

    @abstractmethod
    def lengths(self, n: int, shape_seed: int, first: int = 0) -> tuple[Ints, Ints]:
        """Return the input and the output tokens of the same requests, (n,) each."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The content in words, for the report."""

    @property
    def about(self) -> dict[str, str | None]:
        """Fields of the run's `TraceRecord`, if the content has a source."""
        return {}

    @property
    def dropped(self) -> int:
        """Number of prompts so far that do not fit the context."""
        return 0

    @property
    def prompts(self) -> int | None:
        """Number of prompts, after which they come again; None if each is new."""
        return None

    @abstractmethod
    def input_lengths(self, size: int) -> list[int]:
        """Return `size` numbers of prompt tokens, at evenly spaced quantiles."""


class SyntheticContent(Content):
    """Random token ids; lengths are the same for all requests, or drawn for each."""

    def __init__(self, input_len: int | Uniform, output_len: int | Uniform, vocab_size: int) -> None:
        self._input_len, self._output_len = input_len, output_len
        self._vocab_size = vocab_size

    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        inputs, outputs = self.lengths(n, shape_seed, first)
        pairs = list(zip(inputs.tolist(), outputs.tolist(), strict=True))
        return distinct_requests(UNTIMED, pairs, self._vocab_size, seed, first)

    def lengths(self, n: int, shape_seed: int, first: int = 0) -> tuple[Ints, Ints]:
        inputs = draw_lengths(self._input_len, first + n, shape_seed, INPUTS)
        outputs = draw_lengths(self._output_len, first + n, shape_seed, OUTPUTS)
        return inputs[first:], outputs[first:]

    @property
    def text(self) -> str:
        return f"{lengths_text(self._input_len)} tokens in, {lengths_text(self._output_len)} out"

    def input_lengths(self, size: int) -> list[int]:
        if isinstance(self._input_len, int):
            return [self._input_len] * size
        places = (np.arange(size) + 0.5) / size
        return [int(length) for length in _uniform(self._input_len, places)]


def at_quantiles(lengths: list[int], size: int) -> list[int]:
    """Return `size` of these numbers, at evenly spaced quantiles."""
    ascending = sorted(lengths)
    places = ((np.arange(size) + 0.5) / size * len(ascending)).astype(int)
    return [ascending[place] for place in places]


def draw_lengths(lengths: int | Uniform, n: int, seed: int, stream: int) -> Ints:
    """Draw (n,) numbers of tokens; more of the same seed and stream begin with the same."""
    if isinstance(lengths, int):
        return np.full(n, lengths, dtype=np.int64)
    return _uniform(lengths, sampling.uniforms(n, seed, stream))


def _uniform(lengths: Uniform, places: NDArray[np.float64]) -> Ints:
    """Return the numbers at these values of their distribution function; the shape of `places`."""
    count = lengths.most - lengths.least + 1
    return lengths.least + np.minimum((places * count).astype(np.int64), count - 1)


def check_lengths(input_len: int | Uniform, output_len: int | Uniform, context: int) -> None:
    """Raise UsageError if a request of so many tokens does not fit the context."""
    if most(input_len) + most(output_len) > context:
        raise UsageError(
            f"{input_len} + {output_len} tokens exceed the context of {context}",
            "lower --input-len or --output-len",
        )
