"""One answer while it grows: its text, and where it ends."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.params import Finished
from roseinfer.server.responses import Metrics
from roseinfer.tokenizer.detokenizer import Detokenizer, StopStrings


@dataclass(slots=True)
class Answer:
    """`min_tokens`: stop strings are looked for in the text behind these."""

    text: Detokenizer
    stops: StopStrings
    min_tokens: int
    tokens: int = 0

    def extend(self, token: int, end: Finished | None) -> tuple[str, str | None]:
        """The text that `token` adds, and the reason to finish when it is the last.

        The reason is `stop` before the engine's end when a stop string was found.
        """
        self.tokens += 1
        text = self.text.push(token)
        shown = self.stops.push(text) if self.tokens > self.min_tokens else text
        if end is not None and not self.stops.found:
            shown += self.stops.push(self.text.finish()) + self.stops.finish()
        if self.stops.found:
            return shown, "stop"
        return shown, end.reason.value if end is not None else None


def metrics_of(end: Finished) -> Metrics:
    """An ended request's times as they are reported."""
    return Metrics(
        queue_wait_ms=end.queue_wait * 1e3,
        prefill_ms=end.prefill * 1e3,
        time_to_first_token_ms=(end.queue_wait + end.prefill) * 1e3,
        generation_time_ms=end.generation * 1e3,
    )
