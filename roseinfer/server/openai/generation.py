"""From a request's body to what the engine is asked for; everything that is wrong is refused here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.request.params import MAX_LOGPROBS, EngineInfo, SamplingParams
from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.requests import ChatRequest, CompletionRequest, GenerationRequest, Message
from roseinfer.tokenizer.chat import ChatError, ChatTemplate

MAX_CHOICES = 128
MAX_STOPS = 64
#: Every token is compared with them, in time that grows with the square of their length.
MAX_STOP_CHARACTERS = 256
PROMPT_KINDS = "prompt must be text, token ids, or lists of either"
#: OpenAI's own default for completions.
DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class Work:
    """A checked request: what each answer is generated from.

    `special_tokens`: texts get those that the tokenizer adds by itself. `fills_context`: there is no limit
    but the context, and `params.max_tokens` is not final.
    """

    prompts: tuple[str | NDArray[np.int32], ...]
    params: SamplingParams
    n: int
    stops: tuple[str, ...]
    special_tokens: bool = True
    fills_context: bool = False

    @property
    def num_answers(self) -> int:
        return len(self.prompts) * self.n

    def filling(self, info: EngineInfo, prompt_tokens: int) -> Work:
        """With all that a prompt of this length leaves of the context."""
        room = min(info.max_model_len, info.kv_tokens) - prompt_tokens
        params = msgspec.structs.replace(self.params, max_tokens=max(room, 1))
        return replace(self, params=params, fills_context=False)


def check_completion(request: CompletionRequest, max_model_len: int) -> Work:
    """The work that `request` asks for. Raises BadRequestError for what is wrong or not supported."""
    _refuse(
        echo=request.echo,
        suffix=request.suffix,
        best_of=request.best_of not in (None, request.n),
    )
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    prompts = _prompts(request.prompt, max_model_len)
    if request.logprobs is not None:
        _within("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    return _work(request, max_tokens, prompts, logprobs=request.logprobs)


def check_chat(request: ChatRequest, template: ChatTemplate | None) -> Work:
    """The same for a chat: its messages become the prompt through the model's template."""
    _refuse(
        tools=request.tools,
        response_format=(request.response_format or {}).get("type", "text") != "text",
    )
    if template is None:
        raise BadRequestError("the model has no chat template; use /v1/completions", "messages")
    if not request.messages:
        raise BadRequestError("messages is empty", "messages")
    try:
        prompt = template.render([_turn(message) for message in request.messages])
    except ChatError as error:
        raise BadRequestError(str(error), "messages") from None
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return _work(request, limit, (prompt,), special_tokens=False, logprobs=_chat_logprobs(request))


def _chat_logprobs(request: ChatRequest) -> int | None:
    """How many of the likeliest tokens are asked for; None: no logprobs."""
    _within("top_logprobs", request.top_logprobs or 0, 0, MAX_LOGPROBS)
    if not request.logprobs and request.top_logprobs:
        raise BadRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _work(
    request: GenerationRequest,
    max_tokens: int | None,
    prompts: tuple[str | NDArray[np.int32], ...],
    *,
    special_tokens: bool = True,
    logprobs: int | None,
) -> Work:
    _refuse(
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias,
    )
    _within("n", request.n, 1, MAX_CHOICES)
    limit = 2**31 - 1 if max_tokens is None else max_tokens
    _within("max_tokens", limit, 1, 2**31 - 1)
    _within("min_tokens", request.min_tokens, 0, limit)
    temperature = 1.0 if request.temperature is None else request.temperature
    _within("temperature", temperature, 0, 100)
    top_p = 1.0 if request.top_p is None else request.top_p
    if not 0 < top_p <= 1:
        raise BadRequestError("top_p must be above 0 and at most 1", "top_p")
    top_k = max(request.top_k or 0, 0)
    _within("top_k", top_k, 0, 2**31 - 1)
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if len(stops) > MAX_STOPS:
        raise BadRequestError(f"more than {MAX_STOPS} stop strings", "stop")
    if "" in stops:
        raise BadRequestError("a stop string is empty", "stop")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise BadRequestError(f"a stop string is longer than {MAX_STOP_CHARACTERS} characters", "stop")
    seed = secrets.randbits(64) if request.seed is None else request.seed % 2**64
    if len(prompts) * request.n > MAX_CHOICES:
        raise BadRequestError(f"more than {MAX_CHOICES} answers in one request", "prompt")
    params = SamplingParams(
        max_tokens=limit, min_tokens=request.min_tokens, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed, ignore_eos=request.ignore_eos, logprobs=logprobs,
        stops=bool(stops),
    )  # fmt: skip
    return Work(prompts, params, request.n, stops, special_tokens, fills_context=max_tokens is None)


def _refuse(**asked: object) -> None:
    """Raise for what was asked for and is not there."""
    for name, value in asked.items():
        if value:
            raise BadRequestError(f"{name} is not supported", name)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadRequestError(f"{name} must be from {low} to {high}", name)


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
    if {*map(type, ids)} - {int} or (ids and not 0 <= min(ids) <= max(ids) < 2**31):
        raise BadRequestError(PROMPT_KINDS, "prompt")
    return np.array(ids, dtype=np.int32)


def too_long(most: int) -> BadRequestError:
    """A prompt that the context of `most` tokens does not hold."""
    return BadRequestError(f"the prompt is longer than the context of {most} tokens", "prompt")


def _turn(message: Message) -> dict[str, str]:
    """The message as templates know it."""
    content = message.content or ""
    if not isinstance(content, str):
        if any(part.type != "text" or part.text is None for part in content):
            raise BadRequestError("only text is supported in messages", "messages")
        content = "\n".join(part.text or "" for part in content)
    turn = {"role": message.role, "content": content}
    return turn if message.name is None else turn | {"name": message.name}
