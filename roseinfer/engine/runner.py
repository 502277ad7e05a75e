"""The interface between the engine's loop and the device that computes a step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from roseinfer.batch import Batch, Ints
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.logprobs import StepLogprobs


class Pending(ABC):
    """A launched step."""

    @abstractmethod
    def tokens(self) -> Ints:
        """Wait for the device. Returns the sampled tokens `[R]`, in the order of `batch.requests`."""

    def logprobs(self) -> StepLogprobs | None:
        """Wait for the device. Returns the logprobs of `sampling.logprob_rows`, None without any."""
        return None

    def prompt_logprobs(self) -> StepLogprobs | None:
        """Wait for the device. Returns the logprobs for `sampling.prompts`, None where there are none."""
        return None


class Runner(ABC):
    """Runs batches in the order in which they are launched.

    The last sampled token of every running row stays on the device as the input of decode rows, so that a
    step can be launched before the host has read the tokens of the previous one.
    """

    @abstractmethod
    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        """Start a step. The arrays of `batch` may change once this has returned."""
