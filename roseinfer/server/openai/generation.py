"""Validates a request's body, and turns it into sampling parameters and prompts."""

from __future__ import annotations

import random
from array import array
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.limits import Limits
from roseinfer.request.params import CONTEXT_LENGTH_EXCEEDED, MAX_TOKENS, RequestError, SamplingParams
from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.messages import turn
from roseinfer.server.openai.other_fields import refuse_unsupported
from roseinfer.server.openai.requests import (
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from roseinfer.tokenizer.chat import ChatError, ChatTemplate

PROMPT_KINDS = "prompt must be text, token ids, or lists of either"
#: Logprobs that are held in memory for one request, top tokens included: those of its prompts, and those of
#: its answers unless they are streamed.
MAX_LOGPROBS = 1 << 20
#: OpenAI's default for completions.
DEFAULT_MAX_TOKENS = 16


class Generation(msgspec.Struct, frozen=True):
    """A valid request, with `n` choices for each prompt.

    `with_ids`: token ids are returned. `special_tokens`: the tokenizer adds its special tokens to texts.
    `pieces`: of each prompt that is a text, with `echo`, the texts of its tokens; None of token ids.
    `fills_context`: only the context limits the answer, and `params.max_tokens` is not final. `echo`: answers
    begin with their prompts; `only_echo`: and have nothing else. `seeded`: the request has a seed.
    """

    prompts: tuple[str | NDArray[np.int32], ...]
    params: SamplingParams
    n: int
    stops: tuple[str, ...]
    with_ids: bool
    special_tokens: bool = True
    fills_context: bool = False
    echo: bool = False
    only_echo: bool = False
    seeded: bool = False
    pieces: tuple[list[str] | None, ...] = ()

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    def params_of(self, index: int) -> SamplingParams:
        """The parameters of choice `index`. Choice i of a prompt gets the request's seed plus i, as in vLLM,
        so that a prompt among others is answered as it would be alone."""
        offset = index % self.n if self.seeded else index
        if offset == 0:
            return self.params
        return msgspec.structs.replace(self.params, seed=(self.params.seed + offset) % 2**64)

    def with_echo(self, *, only: bool) -> Generation:
        """The same with prompts in its answers, and their logprobs if logprobs are asked for. `only`: answers
        have nothing else."""
        asked = self.params.logprobs
        logprobs = None if only else asked
        params = msgspec.structs.replace(self.params, prompt_logprobs=asked, logprobs=logprobs)
        return msgspec.structs.replace(self, params=params, echo=True, only_echo=only)

    def fit(self, limits: Limits, prompts: list[NDArray[np.int32]], *, streamed: bool) -> Generation:
        """With a final `max_tokens`. Raises BadRequestError where one of `prompts` does not fit, or there
        would be too many logprobs."""
        generation = self
        try:
            if self.fills_context:
                left = max(limits.left(len(prompts[0])), 1)
                if not streamed and (each := self._logprobs_of_a_token):
                    left = min(left, max(MAX_LOGPROBS // each, self.params.min_tokens))
                params = msgspec.structs.replace(self.params, max_tokens=left)
                generation = msgspec.structs.replace(self, params=params, fills_context=False)
            limits.check_ids(generation.params)
            for prompt in prompts:
                limits.check(prompt, 0 if self.only_echo else generation.params.max_tokens)
        except RequestError as error:
            raise BadRequestError(str(error), error.field, error.code) from None
        generation._check_logprobs(sum(map(len, prompts)), streamed=streamed)
        return generation

    @property
    def _logprobs_of_a_token(self) -> int:
        """How many logprobs come with one token of every answer."""
        return 0 if self.params.logprobs is None else self.num_choices * (1 + self.params.logprobs)

    def _check_logprobs(self, prompt_tokens: int, *, streamed: bool) -> None:
        each = self.params.prompt_logprobs
        held = 0 if each is None else prompt_tokens * self.n * (1 + each)
        if held > MAX_LOGPROBS:
            message = f"more than {MAX_LOGPROBS} logprobs of prompts; send fewer prompts in a request"
            raise BadRequestError(message, "logprobs")
        if not streamed and held + self._logprobs_of_a_token * self.params.max_tokens > MAX_LOGPROBS:
            message = f"more than {MAX_LOGPROBS} logprobs; stream the answers, or ask for fewer"
            raise BadRequestError(message, "logprobs")


def from_completion(request: CompletionRequest, max_model_len: int) -> Generation:
    """What `request` asks for. Raises BadRequestError for what is wrong or not supported."""
    limit = _limit(request)
    max_tokens = DEFAULT_MAX_TOKENS if limit is None else limit
    prompts = _prompts(request.prompt, max_model_len)
    special_tokens = request.add_special_tokens is not False
    generation = _generation(
        request, max_tokens or int(bool(request.echo)), prompts,
        special_tokens=special_tokens, logprobs=request.logprobs,
    )  # fmt: skip
    return generation.with_echo(only=not max_tokens) if request.echo else generation


def from_chat(request: ChatRequest, template: ChatTemplate | None) -> Generation:
    """The same for a chat: its messages become the prompt through the model's template."""
    _refuse(
        echo=request.echo,
        tools=request.tools and request.tool_choice != "none",
        response_format=(request.response_format or {}).get("type", "text") != "text",
    )
    if template is None:
        raise BadRequestError("the model has no chat template; use /v1/completions", "messages")
    if not request.messages:
        raise BadRequestError("messages is empty", "messages")
    try:
        prompt = template.render(
            [turn(message, template) for message in request.messages], request.chat_template_kwargs or {}
        )
    except ChatError as error:
        raise BadRequestError(str(error), error.field) from None
    request = msgspec.structs.replace(request, chat_template_kwargs=None)  # the prompt has what they say
    return _generation(
        request, _limit(request), (prompt,), special_tokens=bool(request.add_special_tokens),
        logprobs=_chat_logprobs(request), logprobs_field="top_logprobs",
    )  # fmt: skip


def _chat_logprobs(request: ChatRequest) -> int | None:
    """How many top tokens are asked for; None: no logprobs."""
    if not request.logprobs and request.top_logprobs:
        raise BadRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _limit(request: GenerationRequest) -> int | None:
    """How many tokens an answer may have; OpenAI has two names for it."""
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def _generation(
    request: GenerationRequest,
    max_tokens: int | None,
    prompts: tuple[str | NDArray[np.int32], ...],
    *,
    special_tokens: bool = True,
    logprobs: int | None,
    logprobs_field: str = "logprobs",
) -> Generation:
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise BadRequestError("stream_options needs stream to be true", "stream_options")
    written = {"logprobs": logprobs_field}
    if request.max_completion_tokens is not None:
        written["max_tokens"] = "max_completion_tokens"
    n = 1 if request.n is None else request.n
    if not 1 <= n <= MAX_CHOICES:
        raise BadRequestError(f"n must be from 1 to {MAX_CHOICES}", "n")
    if request.best_of not in (None, n):
        raise BadRequestError("best_of must equal n", "best_of", "unsupported_parameter")
    if len(prompts) * n > MAX_CHOICES:
        raise BadRequestError(f"more than {MAX_CHOICES} answers in one request", "prompt")
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if len(stops) > MAX_STOPS:
        raise BadRequestError(f"more than {MAX_STOPS} stop strings", "stop")
    if "" in stops:
        raise BadRequestError("a stop string is empty", "stop")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise BadRequestError(f"a stop string is longer than {MAX_STOP_CHARACTERS} characters", "stop")
    try:
        params = SamplingParams(
            max_tokens=MAX_TOKENS if max_tokens is None else max_tokens,
            min_tokens=request.min_tokens or 0,
            temperature=_or(request.temperature, 1.0),
            top_k=0 if request.top_k in (None, -1) else request.top_k,
            top_p=_or(request.top_p, 1.0),
            seed=random.getrandbits(64) if request.seed is None else request.seed % 2**64,
            ignore_eos=bool(request.ignore_eos),
            logprobs=logprobs,
            stops=bool(stops),
            min_p=_or(request.min_p, 0.0),
            repetition_penalty=_or(request.repetition_penalty, 1.0),
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            logit_bias=_biases(request.logit_bias or {}),
            stop_token_ids=tuple(request.stop_token_ids or ()),
        )
    except RequestError as error:
        message, field = str(error), error.field
        if field is not None and (named := written.get(field)):
            message, field = message.replace(field, named, 1), named
        raise BadRequestError(message, field) from None
    return Generation(
        prompts, params, n, stops, bool(request.return_token_ids), special_tokens, max_tokens is None,
        seeded=request.seed is not None,
    )  # fmt: skip


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), bias) for token, bias in given.items())
    except ValueError:
        raise BadRequestError("logit_bias must have token ids as its keys", "logit_bias") from None


def _refuse(**asked: object) -> None:
    """Raise BadRequestError for the first field with a true value."""
    for name, value in asked.items():
        if value:
            raise BadRequestError(f"{name} is not supported", name, "unsupported_parameter")


def _prompts(prompt: str | list[Any], most: int) -> tuple[str | NDArray[np.int32], ...]:
    """A text, texts, token ids, or lists of token ids; these are `most` at most."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise BadRequestError("prompt is empty", "prompt")
    if type(prompt[0]) is int:
        return (_token_ids(prompt, most),)
    if len(prompt) > MAX_CHOICES:
        raise BadRequestError(f"more than {MAX_CHOICES} prompts", "prompt")
    if all(isinstance(part, str) for part in prompt):
        return tuple(prompt)
    if all(isinstance(part, list) for part in prompt):
        return tuple(_token_ids(part, most) for part in prompt)
    raise BadRequestError(PROMPT_KINDS, "prompt")


def _token_ids(ids: list[Any], most: int) -> NDArray[np.int32]:
    if len(ids) > most:
        raise too_long(most)
    if {*map(type, ids)} - {int}:
        raise BadRequestError(PROMPT_KINDS, "prompt")
    try:
        return np.asarray(array("i", ids))  # faster than from the list
    except OverflowError:
        raise BadRequestError("token ids must be from 0 to 2147483647", "prompt") from None


def too_long(most: int) -> BadRequestError:
    """The error for a prompt that does not fit the context of `most` tokens."""
    message = f"This model's maximum context length is {most} tokens. However, the prompt is too long."
    return BadRequestError(message, "prompt", CONTEXT_LENGTH_EXCEEDED)


def no_tokenizer() -> BadRequestError:
    """The error for a text where the model has no tokenizer."""
    return BadRequestError("the model has no tokenizer; send token ids", "prompt")
