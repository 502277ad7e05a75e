"""Trial requests to a running server: which fields it takes, token ids or text, and how it counts prompts."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.engines.base import NO_PENALTY, TYPED, Encoder, RequestSettings, endpoint_target
from harness.engines.prompts import Lengths, of_words
from harness.engines.running.model_list import no_answer, refusal
from harness.engines.server_pages import request as ask_page
from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.models.text_tokens import COMMON_WORDS
from harness.records.stream import Stream, StreamFields, read_error, read_stream
from harness.workload import PlannedRequest

#: An answer that may mean that a field is not wanted.
_REFUSED = (400, 422, 500, 501)
#: A limit on how much may be asked, or too much to do.
_OVERLOADED = (429, 503, 529)
#: How often a request goes that breaks or fails with 500.
TRIES = 3
#: Seconds until a request goes again that met a limit on how much may be asked, which is often one a minute.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
#: The option of `stream_options` that asks for usage in every chunk.
CONTINUOUS = "continuous_usage_stats"
_IDS = "return_token_ids"
_OUTPUT_TOKENS = 4
_PROMPT_TOKENS = 16
#: Words of the two texts by which a server's count of tokens is understood.
_SHORT, _LONG = 8, 40
MakeEncoder = Callable[[RequestSettings], Encoder]


@dataclass(frozen=True)
class _Change:
    """A way to ask for less: `field` is what the server's message would name."""

    field: str
    apply: Callable[[RequestSettings], RequestSettings]


def _without(field: str) -> _Change:
    return _Change(field, lambda accepted: replace(accepted, left_out=accepted.left_out | {field}))


_AS_TEXT = _Change("prompt", lambda accepted: replace(accepted, text=True))
_NATURAL_END = _Change("ignore_eos", lambda accepted: replace(accepted, ignore_eos=False))
_OTHER_LIMIT = _Change("max_tokens", lambda accepted: replace(accepted, limit_field="max_completion_tokens"))


@dataclass(frozen=True)
class Trial:
    """Asks a server at `target` with bodies that `encoder_of` makes of settings, again after each of
    `pauses_s` where it has too much to do."""

    target: Target
    encoder_of: MakeEncoder
    pauses_s: Sequence[float] = PAUSES_S

    def adapted(self, settings: RequestSettings) -> RequestSettings:
        """Reduce `settings` to what the server takes.

        A field that the server's message names is left out; where it names none, one after the other, and
        those that were not the reason come back.

        Raises:
            EngineError: It takes no request, or none that can be measured.
        """
        accepted, blind = settings, []
        changes = _changes(settings)
        while (reason := self._refused(accepted)) is not None:
            named = [change for change in changes if re.search(rf"\b{change.field}\b", reason)]
            if not changes:
                raise EngineError(
                    f"{self.target.place} takes no request: {reason}",
                    "see the server's log, and check --served-model and --endpoint",
                    new_run=True,
                )
            change = (named or changes)[0]
            changes.remove(change)
            if not named:
                blind.append(change)
            accepted = change.apply(accepted)
        accepted = self._measured(self._restored(settings, accepted, blind))
        if (
            accepted.endpoint == "completions"
            and self._refused(replace(accepted, token_ids=True)) is not None
        ):
            accepted = replace(accepted, left_out=accepted.left_out | {_IDS})
        return accepted

    def _restored(
        self, settings: RequestSettings, accepted: RequestSettings, blind: list[_Change]
    ) -> RequestSettings:
        """Undo the changes among `blind` that `accepted` does not need; the last one was the reason."""
        for change in blind[:-1]:
            others = [other for other in blind if other is not change]
            less = settings
            for other in others:
                less = other.apply(less)
            less = replace(less, left_out=less.left_out | (accepted.left_out - {change.field}))
            if self._refused(less) is None:
                accepted, blind = less, others
        return accepted

    def _refused(self, accepted: RequestSettings) -> str | None:
        """Return the reason why a request is refused; None if it is answered. Raises EngineError for other
        faults."""
        prompt = np.arange(10, 10 + _PROMPT_TOKENS, dtype=np.int32)
        status, body = self._ask(accepted, PlannedRequest(0, None, prompt, _OUTPUT_TOKENS))
        if status in _REFUSED:
            return f"{read_error(body.encode())} (status {status})"
        if status != 200:
            raise refusal(self.target, f"POST {self._path(accepted)}", status, body)
        stream = _read(body, accepted)
        if stream.error is not None:
            return stream.error
        if not stream.chunks:
            raise EngineError(
                f"{self.target.place} answers without a stream: {read_error(body.encode())}",
                "the server must send server-sent events",
            )
        return None

    def _measured(self, accepted: RequestSettings) -> RequestSettings:
        """Add the lengths of text as the server counts it."""
        if not (accepted.text or accepted.endpoint != "completions"):
            return accepted
        encoder = self.encoder_of(accepted)
        counts, server_counts = [], []
        for words in (_SHORT, _LONG):
            planned = _text_request(of_words(words, first=words))
            status, body = self._ask(accepted, planned)
            if status != 200:
                raise refusal(self.target, f"POST {self._path(accepted)}", status, body)
            counted = _read(body, accepted).prompt_tokens
            if counted is None:
                return replace(accepted, lengths=Lengths(exact=accepted.tokenizer is not None))
            counts.append(encoder.input_tokens(planned) or words if accepted.tokenizer else words)
            server_counts.append(counted)
        each = (server_counts[1] - server_counts[0]) / (counts[1] - counts[0])
        if each <= 0:
            return replace(accepted, lengths=Lengths(exact=False))
        offset = round(server_counts[0] - each * counts[0])
        if each == 1.0 and accepted.tokenizer is None:
            each = self._tokens_of_a_word(accepted, offset)
        return replace(accepted, lengths=Lengths(offset, each, exact=each == 1.0))

    def _tokens_of_a_word(self, accepted: RequestSettings, offset: int) -> float:
        """Mean tokens of all common words; 1 where the server does not take a text of all of them, or cuts it
        in silence: no word is less than a token, and longer prompts of the load are to fail."""
        words = len(COMMON_WORDS)
        status, body = self._ask(accepted, _text_request(of_words(words)))
        counted = _read(body, accepted).prompt_tokens if status == 200 else None
        return 1.0 if counted is None else max(1.0, (counted - offset) / words)

    def _path(self, accepted: RequestSettings) -> str:
        return endpoint_target(self.target, accepted.endpoint).path

    def _ask(self, accepted: RequestSettings, planned: PlannedRequest) -> tuple[int, str]:
        """Status and body; of another try where the connection breaks, the server has too much to do or the
        status is 500, which may say nothing of the request."""
        target = endpoint_target(self.target, accepted.endpoint)
        body = self.encoder_of(accepted)(planned).decode()
        pauses, more = iter(self.pauses_s), TRIES
        while True:
            more -= 1
            try:
                status, content = ask_page(target, "POST", target.path, target.answer_s, body)
            except (OSError, http.client.HTTPException) as error:
                if more > 0 and isinstance(error, (http.client.HTTPException, ConnectionError)):
                    continue
                raise no_answer(self.target, error) from None
            pause = next(pauses, None) if status in _OVERLOADED else None
            if pause is not None:
                time.sleep(pause)
            elif status != 500 or more <= 0:
                return status, content


def _text_request(text: str) -> PlannedRequest:
    """Plan a request of that text, whatever its length."""
    return PlannedRequest(0, None, np.zeros(0, np.int32), _OUTPUT_TOKENS, text=text)


def _read(body: str, settings: RequestSettings) -> Stream:
    fields = StreamFields(typed=settings.endpoint in TYPED)
    return read_stream([(0.0, body.encode())], complete=True, fields=fields)


def _changes(settings: RequestSettings) -> list[_Change]:
    """List what can be left out, in the order in which it is missed least; nothing that the user gives."""
    if settings.endpoint in TYPED:
        return [_without(name) for name in ("store", "temperature") if name not in settings.own_fields]
    changes = [_without(CONTINUOUS), *map(_without, [*NO_PENALTY, *reversed(settings.drawing)])]
    if settings.ignore_eos:
        changes.append(_NATURAL_END)
    if settings.endpoint == "chat":
        changes.append(_OTHER_LIMIT)
    elif not settings.text:
        changes.append(_AS_TEXT)
    changes += map(_without, ("seed", "temperature", "stream_options"))
    return [change for change in changes if change.field not in settings.own_fields]
