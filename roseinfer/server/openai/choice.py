"""One answer while it grows: its text, and where it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished
from roseinfer.server.openai.logprobs import AnswerLogprobs, Logprobs
from roseinfer.server.openai.responses import Metrics
from roseinfer.tokenizer.detokenizer import Detokenizer, StopStrings


@dataclass(slots=True)
class Answer:
    """`min_tokens`: stop strings are looked for in the text behind these. `logprobs`: where asked for."""

    text: Detokenizer
    stops: StopStrings
    min_tokens: int
    logprobs: AnswerLogprobs | None = None
    tokens: int = 0
    begun: Finished | None = None
    first_token: float = 0.0

    def begin(self, begun: Finished) -> None:
        """What the engine knows at the first token, which is there now."""
        self.begun, self.first_token = begun, time.monotonic()

    def stopped(self) -> Finished | None:
        """What the engine would tell if it had ended the answer, now that a stop string has."""
        if self.begun is None:
            return None
        return msgspec.structs.replace(self.begun, generation=time.monotonic() - self.first_token)

    def tell(self, logprobs: TokenLogprobs) -> None:
        """Of the token that the next `extend` brings."""
        if self.logprobs is not None:
            self.logprobs.tell(logprobs)

    def extend(self, token: int, end: Finished | None) -> tuple[str, str | None]:
        """The text that `token` adds, and the reason to finish when it is the last.

        The reason is `stop` before the engine's end when a stop string was found.
        """
        self.tokens += 1
        text = self.text.push(token)
        if self.logprobs is not None:
            self.logprobs.extend(text)
        shown = self.stops.push(text) if self.tokens > self.min_tokens else text
        if end is not None and not self.stops.found:
            shown += self.stops.push(self.text.finish()) + self.stops.finish()
        if self.stops.found:
            return shown, "stop"
        return shown, end.reason.value if end is not None else None

    def take_logprobs(self) -> Logprobs | None:
        """Of the tokens since the last call; None where they are not asked for."""
        return None if self.logprobs is None else self.logprobs.take()


def metrics_of(tokenize: float, end: Finished) -> Metrics:
    """An ended request's times as they are reported; `tokenize` in s."""
    return Metrics(
        tokenize_ms=tokenize * 1e3,
        queue_wait_ms=end.queue_wait * 1e3,
        prefill_ms=end.prefill * 1e3,
        time_to_first_token_ms=(end.queue_wait + end.prefill) * 1e3,
        generation_time_ms=end.generation * 1e3,
    )
