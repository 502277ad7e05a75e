"""Copies of a step's tokens and logprobs to the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from roseinfer.batch import NO_INTS, Ints
from roseinfer.engine.logprobs import DeviceLogprobs, LogprobRows, PromptLogprobRows, collect
from roseinfer.engine.runner import Pending
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.tensors import fetch


class Fetched(Pending):
    """Tokens `[R]` in parts, and the logprobs of those that were asked for.

    On a GPU the copies to the host start on construction, and are complete with `event`, which is recorded
    after them; on a CPU `event` is None.
    """

    def __init__(
        self,
        tokens: Sequence[Tensor],
        rows: LogprobRows | None,
        logprobs: Sequence[DeviceLogprobs],
        event: torch.cuda.Event | None,
        prompts: PromptLogprobRows | None = None,
        prompt_logprobs: Sequence[DeviceLogprobs] = (),
    ) -> None:
        self._prompts, self._prompt_logprobs = prompts, _fetched(prompt_logprobs)
        self._tokens, self._rows, self._event = [fetch(part) for part in tokens], rows, event
        self._logprobs = _fetched(logprobs)
        if event is not None:
            event.record()

    def tokens(self) -> Ints:
        self._wait()
        tokens: Ints = np.concatenate([NO_INTS, *(part.numpy() for part in self._tokens)])
        return tokens

    def logprobs(self) -> StepLogprobs | None:
        if self._rows is None:
            return None
        self._wait()
        return collect(self._rows, self._logprobs)

    def prompt_logprobs(self) -> StepLogprobs | None:
        if self._prompts is None:
            return None
        self._wait()
        return collect(self._prompts, self._prompt_logprobs)

    def _wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


def _fetched(parts: Sequence[DeviceLogprobs]) -> list[DeviceLogprobs]:
    return [DeviceLogprobs(fetch(part.tokens), fetch(part.values)) for part in parts]
