"""The seam between the engine's loop and the device that computes a step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from roseinfer.batch import Batch, Ints
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.logprobs import StepLogprobs


class Pending(ABC):
    """A step that was launched."""

    @abstractmethod
    def tokens(self) -> Ints:
        """Wait for the device; the sampled tokens `[R]`, in the order of `batch.requests`."""

    @abstractmethod
    def logprobs(self) -> StepLogprobs | None:
        """Wait for the device; the logprobs of `sampling.asked`, None where no request asked."""

    def prompt_logprobs(self) -> StepLogprobs | None:
        """Wait for the device; those of `sampling.prompts`, None where no prompt asked, or it has none."""
        return None


class Runner(ABC):
    """Runs batches in the order in which they are launched.

    It keeps the last sampled token of every running row where it computes: the decode rows of a batch start
    from it, so that a step can be launched before the host has read the tokens of the one before.
    """

    @abstractmethod
    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        """Start a step. The arrays of `batch` may change once this has returned."""
