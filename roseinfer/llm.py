"""Offline inference: the engine in the caller's process, for batches of prompts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.request.params import RequestError, SamplingParams
from roseinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer


class LLM:
    """`LLM(EngineConfig(model, …)).generate(prompts, …)`."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises ConfigError where the engine cannot work as `config` says."""
        if not isinstance(config, EngineConfig):
            raise ConfigError(f"LLM takes an EngineConfig, not {config!r:.100}: LLM(EngineConfig(model))")
        self.engine = Engine(config)
        self._generating = threading.Lock()
        self.tokenizer: Tokenizer | None = load_tokenizer(config.model)

    def generate(
        self, prompts: Iterable[Sequence[int]], params: SamplingParams | Iterable[SamplingParams]
    ) -> list[list[int]]:
        """Generated token ids for each prompt of token ids, in their order.

        One `params` serves all prompts, each answered as it would be alone. For different answers to the same
        prompt, give one for each, with different seeds. Raises RequestError when a prompt does not fit or is
        no list of ids, or has no params, and UnknownTokenError, also a ValueError, when an id is not in the
        vocabulary; then nothing has run. Ctrl-C ends it between two steps. Calls of several threads run one
        after the other.
        """
        prompts = list(prompts)
        params = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(params) != len(prompts):
            counts = f"{len(prompts)} prompts and {len(params)} SamplingParams"
            raise RequestError(f"{counts}: give one for all prompts, or one for each")
        with self._generating:
            return self._generate(prompts, params)

    def _generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        try:
            for index, (prompt, request_params) in enumerate(zip(prompts, params, strict=True)):
                self.engine.add(index, self.engine.info.limits.token_ids(prompt), request_params)
            with _interrupt_at_end() as interrupted:
                while not interrupted and (result := self.engine.step()) is not None:
                    for request, token in zip(result.ids.tolist(), result.tokens.tolist(), strict=True):
                        outputs[request].append(token)
        except BaseException:
            for index in range(len(prompts)):
                self.engine.discard(index)
            raise
        return outputs


@contextmanager
def _interrupt_at_end() -> Iterator[list[int]]:
    """Ctrl-C is raised at the end of the context, and a second one at once: an engine whose step was
    interrupted cannot be used again. The list has an entry from the first on."""
    noted: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if noted:
        raise KeyboardInterrupt
