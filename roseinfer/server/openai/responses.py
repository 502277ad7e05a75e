"""Bodies of responses and errors, as OpenAI defines them and vLLM extends them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import msgspec

from roseinfer.request.logprobs import TokenLogprobs
from roseinfer.request.params import Finished
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.response import Response
from roseinfer.server.openai.tool_calls import ToolCallPart
from roseinfer.tokenizer.token_names import TokenName, TokenNames

_encode = msgspec.json.Encoder().encode
#: The `code` of an error by its status, where there is no other.
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ErrorBody(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


def error_body(error: HttpError) -> bytes:
    """Encode an error, for a response or an event of a stream."""
    kind = _KINDS.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    code = error.code or _CODES.get(error.status)
    return _encode({"error": ErrorBody(str(error), kind, error.param, code)})


def error_response(error: HttpError) -> Response:
    """Return the whole response with an error."""
    return Response(error.status, error_body(error), headers=error.headers)


class PromptDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were in the prefix cache; none where it is off."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole HTTP request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Metrics(msgspec.Struct, frozen=True):
    """Parts of an answer's time, in ms: `tokenize_ms` in the front end, before submission to the engine;
    the others in the engine."""

    tokenize_ms: float
    queue_wait_ms: float
    prefill_ms: float
    time_to_first_token_ms: float
    generation_time_ms: float

    @classmethod
    def of(cls, tokenize: float, end: Finished) -> Metrics:
        """Convert the metrics of a request that ended; `tokenize` in s."""
        return cls(
            tokenize_ms=tokenize * 1e3,
            queue_wait_ms=end.queue_wait * 1e3,
            prefill_ms=end.prefill * 1e3,
            time_to_first_token_ms=(end.queue_wait + end.prefill) * 1e3,
            generation_time_ms=end.generation * 1e3,
        )


#: Tokens with their logprobs: the token that was taken, then the most likely ones in descending order.
Named = Iterator[tuple[TokenName, float]]


class CompletionLogprobs(msgspec.Struct):
    """Logprobs for /v1/completions. `top_logprobs`: the token taken and the most likely ones; `text_offset`:
    where in the answer's text a token begins, in characters. The first token of a prompt has no logprob."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def add(self, named: Named, offset: int) -> None:
        """Add the next token."""
        top: dict[str, float] = {}
        for name, logprob in named:
            top.setdefault(_legacy(name), logprob)
        token = next(iter(top))
        self.tokens.append(token)
        self.token_logprobs.append(top[token])
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def add_first(self, name: TokenName, offset: int) -> None:
        """Add the first token of a prompt."""
        self.tokens.append(_legacy(name))
        self.token_logprobs.append(None)
        self.top_logprobs.append(None)
        self.text_offset.append(offset)


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the most likely tokens."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TopLogprob, frozen=True):
    """A token that was taken; `bytes` of several tokens joined are the UTF-8 of their text."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Logprobs for /v1/chat/completions."""

    content: list[ContentLogprob] = []
    refusal: None = None

    def add(self, named: Named, offset: int) -> None:
        """Add the next token."""
        (name, logprob), *likeliest = named
        top = [TopLogprob(each.text, value, each.bytes) for each, value in likeliest]
        self.content.append(ContentLogprob(name.text, logprob, name.bytes, top))


Logprobs = CompletionLogprobs | ChatLogprobs


class ChoiceLogprobs:
    """Collects the logprobs of one choice, with `count` top tokens each, until they are sent."""

    def __init__(self, form: type[Logprobs], count: int, names: TokenNames) -> None:
        self._form, self._count, self._names = form, count, names
        self._collected, self._offset = form(), 0

    def add(self, logprobs: TokenLogprobs) -> None:
        """Add the next token's logprobs."""
        end, names = 1 + self._count, self._names
        tokens, values = logprobs.tokens[:end], logprobs.values[:end]
        named = ((names[token], value) for token, value in zip(tokens, values, strict=True))
        self._collected.add(named, self._offset)

    def add_prompt(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Add the next prompt token's logprobs; None: it is the first token."""
        if logprobs is not None:
            self.add(logprobs)
        elif isinstance(self._collected, CompletionLogprobs):
            self._collected.add_first(self._names[token], self._offset)

    def extend(self, text: str) -> None:
        """Advance the text offset by `text`, which includes a stop string."""
        self._offset += len(text)

    def take(self) -> Logprobs:
        """Return the logprobs of the tokens since the last call."""
        collected, self._collected = self._collected, self._form()
        return collected


def _legacy(name: TokenName) -> str:
    """Return the token's name in completions, which have no field for bytes."""
    return name.text if name.whole else f"bytes:{name.text}"


class ChoiceBody(msgspec.Struct, omit_defaults=True):
    """A choice of a completion, or the part of it in a chunk."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallPart] | msgspec.UnsetType = msgspec.UNSET


class ChatText(msgspec.Struct, omit_defaults=True):
    """A message, or the part of it in a chunk; the first chunk has its role."""

    content: str | None
    role: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallPart] | msgspec.UnsetType = msgspec.UNSET


class ChatChoiceBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A choice of a chat completion: a message, or the part of it in a chunk."""

    index: int
    message: ChatText | msgspec.UnsetType = msgspec.UNSET
    delta: ChatText | msgspec.UnsetType = msgspec.UNSET
    logprobs: Logprobs | None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


UsageField = Usage | msgspec.UnsetType | None


class ResponseBody(msgspec.Struct):
    """A whole response, or a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: Sequence[ChoiceBody | ChatChoiceBody]
    usage: UsageField
    object: str


class CompletionFormat:
    """The bodies of one request's responses, which share an id, for /v1/completions."""

    logprobs: type[Logprobs] = CompletionLogprobs
    prefix = "cmpl"

    def __init__(self, model: str) -> None:
        self._id, self._created = f"{self.prefix}-{random.getrandbits(128):032x}", int(time.time())
        self._model = model

    def whole(self, choices: list[ChoiceBody], usage: UsageField) -> bytes:
        """Encode a whole response."""
        return self._body(choices, usage, "text_completion")

    def chunk(self, choices: list[ChoiceBody], usage: UsageField, *, first: bool = False) -> bytes:
        """Encode a chunk of a stream; `first`: the first of its choice."""
        return self._body(choices, usage, "text_completion")

    def _body(self, choices: Sequence[ChoiceBody | ChatChoiceBody], usage: UsageField, kind: str) -> bytes:
        return _encode(ResponseBody(self._id, self._created, self._model, choices, usage, kind))


class ChatFormat(CompletionFormat):
    """The same for /v1/chat/completions."""

    logprobs: type[Logprobs] = ChatLogprobs
    prefix = "chatcmpl"

    def whole(self, choices: list[ChoiceBody], usage: UsageField) -> bytes:
        for call in (call for choice in choices for call in choice.tool_calls or ()):
            call.index = msgspec.UNSET
        messages = [_chat_choice(choice, message=_chat_text(choice, "assistant")) for choice in choices]
        return self._body(messages, usage, "chat.completion")

    def chunk(self, choices: list[ChoiceBody], usage: UsageField, *, first: bool = False) -> bytes:
        role = "assistant" if first else msgspec.UNSET
        deltas = [_chat_choice(choice, delta=_chat_text(choice, role)) for choice in choices]
        return self._body(deltas, usage, "chat.completion.chunk")


def _chat_text(choice: ChoiceBody, role: str | msgspec.UnsetType) -> ChatText:
    return ChatText(choice.text or (None if choice.tool_calls else ""), role, choice.tool_calls)


def _chat_choice(choice: ChoiceBody, **text: ChatText) -> ChatChoiceBody:
    return ChatChoiceBody(
        index=choice.index, logprobs=choice.logprobs, finish_reason=choice.finish_reason,
        token_ids=choice.token_ids, metrics=choice.metrics, **text,
    )  # fmt: skip
