"""Validation of a request's body, which becomes sampling parameters and prompts."""

from __future__ import annotations

import random
from array import array
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.ipc.messages import MAX_CHOICES
from roseinfer.request.limits import Limits
from roseinfer.request.params import CONTEXT_LENGTH_EXCEEDED, MAX_TOKENS, RequestError, SamplingParams
from roseinfer.server.http.errors import BadRequestError
from roseinfer.server.openai.requests import (
    MAX_SALT_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    ROLES,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    MessageCount,
    StreamOptions,
    TextPart,
    ToolCall,
    parse,
    refuse_unsupported,
)
from roseinfer.tokenizer.chat import ChatError, ChatTemplate

PROMPT_KINDS = "prompt must be text, token ids, or lists of either"
#: Logprobs that are held in memory for one request, top tokens included: those of its prompts, and those of
#: its answers unless they are streamed.
MAX_LOGPROBS = 1 << 20
#: OpenAI's default for completions.
DEFAULT_MAX_TOKENS = 16
_CONVERTED = {
    "max_tokens", "temperature", "top_k", "seed", "logit_bias", "stop_token_ids", "prompt_logprobs"
}  # fmt: skip
#: Fields that SamplingParams takes from a request as they are; null means its default.
_UNCHANGED = {*GenerationRequest.__struct_fields__} & {*SamplingParams.__struct_fields__} - _CONVERTED


class Generation(msgspec.Struct, frozen=True):
    """A valid request, with `n` choices for each prompt.

    Attributes:
        prompts: Texts, or token ids `[n]`.
        with_ids: Token ids are returned.
        special_tokens: The tokenizer adds its special tokens to texts.
        fills_context: Only the context limits the answer, and `params.max_tokens` is not final.
        echo: Answers begin with their prompts.
        only_echo: They have nothing else.
        seeded: The request has a seed.
        pieces: With `echo`, the texts of the tokens of each prompt that is a text; None for token ids.
        model: The model that the request names.
        stream: Options of a stream; None: the response is one body.
        with_metrics: The parts of the answer's time are returned.
        chat: The answer is a message of a chat.
        calls_tools: It may call tools.
        cache_salt: What requests must share to share the prefix cache.
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
    model: str | None = None
    stream: StreamOptions | None = None
    with_metrics: bool = False
    chat: bool = False
    calls_tools: bool = False
    cache_salt: str | None = None

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.n

    def params_of(self, index: int) -> SamplingParams:
        """Return the parameters of the first choice of prompt `index`; choice i gets its seed plus i. With a
        seed in the request, as in vLLM, a prompt among others is answered as it would be alone."""
        return self.params if self.seeded else self.params.choice(index * self.n)

    def with_echo(self, *, only: bool) -> Generation:
        """Return the same with prompts in its answers, and their logprobs if logprobs are asked for. `only`:
        answers have nothing else."""
        count = self.params.logprobs
        params = msgspec.structs.replace(self.params, prompt_logprobs=count, logprobs=None if only else count)
        return msgspec.structs.replace(self, params=params, echo=True, only_echo=only)

    def fit(self, limits: Limits, prompts: list[NDArray[np.int32]]) -> Generation:
        """Return the same with a final `max_tokens`. Raises BadRequestError if one of `prompts` (token ids
        `[n]`) does not fit, or there would be too many logprobs."""
        generation = self
        try:
            if self.fills_context:
                max_tokens = max(limits.left(len(prompts[0])), 1)
                if each := self._held_logprobs_of_a_token:
                    max_tokens = min(max_tokens, max(MAX_LOGPROBS // each, self.params.min_tokens))
                params = msgspec.structs.replace(self.params, max_tokens=max_tokens)
                generation = msgspec.structs.replace(self, params=params, fills_context=False)
            limits.check_ids(generation.params)
            for prompt in prompts:
                limits.check(prompt, 0 if self.only_echo else generation.params.max_tokens)
        except RequestError as error:
            raise BadRequestError(str(error), error.field, error.code) from None
        generation._check_logprobs(sum(map(len, prompts)))
        return generation

    @property
    def _held_logprobs_of_a_token(self) -> int:
        """Number of logprobs that are held for one token of every answer; 0 in streams, which send them."""
        if self.params.logprobs is None or self.stream is not None:
            return 0
        return self.num_choices * (1 + self.params.logprobs)

    def _check_logprobs(self, prompt_tokens: int) -> None:
        each = self.params.prompt_logprobs
        held_logprobs = 0 if each is None else prompt_tokens * self.n * (1 + each)
        if held_logprobs > MAX_LOGPROBS:
            message = f"more than {MAX_LOGPROBS} logprobs of prompts; send fewer prompts in a request"
            raise BadRequestError(message, "logprobs")
        if held_logprobs + self._held_logprobs_of_a_token * self.params.max_tokens > MAX_LOGPROBS:
            message = f"more than {MAX_LOGPROBS} logprobs; stream the answers, or ask for fewer"
            raise BadRequestError(message, "logprobs")


def read_body(
    body: bytes | bytearray, chat: bool, template: ChatTemplate | None, max_model_len: int
) -> Generation:
    """Parse and validate the body of a completion or chat. Raises BadRequestError."""
    if not chat:
        return from_completion(parse(body, CompletionRequest), max_model_len)
    # a message is an object; only where there may be too many are they counted, before they become Python's
    if body.count(b"{") > max_model_len and len(parse(body, MessageCount).messages) > max_model_len:
        raise too_long(max_model_len, "messages")
    return from_chat(parse(body, ChatRequest), template)


def from_completion(request: CompletionRequest, max_model_len: int) -> Generation:
    """Validate a completion. Raises BadRequestError for a field that is wrong or not supported."""
    limit = _limit(request)
    max_tokens = DEFAULT_MAX_TOKENS if limit is None else limit
    generation = _generation(
        request, max_tokens or int(bool(request.echo)), _prompts(request.prompt, max_model_len),
        special_tokens=request.add_special_tokens is not False, logprobs=request.logprobs,
    )  # fmt: skip
    return generation.with_echo(only=not max_tokens) if request.echo else generation


def from_chat(request: ChatRequest, template: ChatTemplate | None) -> Generation:
    """Validate a chat: its messages become the prompt through the model's template."""
    calls_tools = bool(request.tools) and request.tool_choice != "none"
    for name, unsupported in (
        ("echo", request.echo),
        ("parallel_tool_calls", calls_tools and request.parallel_tool_calls is False),
        ("response_format", (request.response_format or {}).get("type", "text") != "text"),
    ):
        if unsupported:
            raise BadRequestError(f"{name} is not supported", name, "unsupported_parameter")
    if template is None:
        raise BadRequestError("the model has no chat template; use /v1/completions", "messages")
    if not request.messages:
        raise BadRequestError("messages is empty", "messages")
    try:
        prompt = template.render(
            [_turn(message, template) for message in request.messages],
            request.chat_template_kwargs or {},
            request.tools,
        )
    except ChatError as error:
        raise BadRequestError(str(error), error.field) from None
    request = msgspec.structs.replace(request, chat_template_kwargs=None)  # the prompt has what they say
    generation = _generation(
        request, _limit(request), (prompt,), special_tokens=bool(request.add_special_tokens),
        logprobs=_chat_logprobs(request), logprobs_field="top_logprobs",
    )  # fmt: skip
    return msgspec.structs.replace(generation, chat=True, calls_tools=calls_tools)


def _chat_logprobs(request: ChatRequest) -> int | None:
    """Return the number of top tokens; None: no logprobs."""
    if not request.logprobs and request.top_logprobs:
        raise BadRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _limit(request: GenerationRequest) -> int | None:
    """Return the most tokens that an answer may have; OpenAI has two names for it."""
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def _generation(
    request: GenerationRequest,
    max_tokens: int | None,
    prompts: tuple[str | NDArray[np.int32], ...],
    *,
    special_tokens: bool,
    logprobs: int | None,
    logprobs_field: str = "logprobs",
) -> Generation:
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise BadRequestError("stream_options needs stream to be true", "stream_options")
    names = {"logprobs": logprobs_field}  # of fields with another name in the request
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
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
    salt = request.cache_salt
    if salt is not None and not 1 <= len(salt) <= MAX_SALT_CHARACTERS:
        raise BadRequestError(f"cache_salt must have 1 to {MAX_SALT_CHARACTERS} characters", "cache_salt")
    try:
        params = SamplingParams(
            max_tokens=MAX_TOKENS if max_tokens is None else max_tokens,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_k=0 if request.top_k in (None, -1) else request.top_k,
            seed=random.getrandbits(64) if request.seed is None else request.seed % 2**64,
            logprobs=logprobs,
            stops=bool(stops),
            logit_bias=_biases(request.logit_bias or {}),
            stop_token_ids=tuple(request.stop_token_ids or ()),
            **{name: value for name in _UNCHANGED if (value := getattr(request, name)) is not None},
        )
    except RequestError as error:
        message, field = str(error), error.field
        if field is not None and (name := names.get(field)):
            message, field = message.replace(field, name, 1), name
        raise BadRequestError(message, field) from None
    return Generation(
        prompts, params, n, stops, bool(request.return_token_ids), special_tokens, max_tokens is None,
        seeded=request.seed is not None, model=request.model, with_metrics=bool(request.return_metrics),
        stream=(request.stream_options or StreamOptions()) if request.stream else None, cache_salt=salt,
    )  # fmt: skip


def _biases(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple((int(token), bias) for token, bias in biases.items())
    except ValueError:
        raise BadRequestError("logit_bias must have token ids as its keys", "logit_bias") from None


def _prompts(prompt: str | list[Any], most: int) -> tuple[str | NDArray[np.int32], ...]:
    """Return the prompts in a text, texts, token ids, or lists of token ids; each has `most` ids at most."""
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


def too_long(most: int, field: str = "prompt") -> BadRequestError:
    """Return the error for a prompt, from `field`, that does not fit the context of `most` tokens."""
    message = f"This model's maximum context length is {most} tokens. However, the prompt is too long."
    return BadRequestError(message, field, CONTEXT_LENGTH_EXCEEDED)


def no_tokenizer() -> BadRequestError:
    """Return the error for a text if the model has no tokenizer."""
    return BadRequestError("the model has no tokenizer; send token ids", "prompt")


def _turn(message: Message, template: ChatTemplate) -> dict[str, Any]:
    """Convert a message to the form that chat templates expect. A `template` may leave out messages of roles
    that it does not name: then `developer` is `system`, and `function` is refused."""
    role = message.role
    if role not in ROLES:
        raise BadRequestError(f"the role {role!r:.100} is none of {', '.join(ROLES)}", "messages")
    if role == "function" and not template.names(role):
        raise BadRequestError("the model's chat template has no role 'function'; use 'tool'", "messages")
    if role == "developer" and not template.names(role):
        role = "system"
    if message.function_call is not None:
        raise BadRequestError("function_call is not supported in messages; use tool_calls", "messages")
    content = message.content or ""
    if not isinstance(content, str):
        content = "\n".join(_text(part, role) for part in content)
    turn: dict[str, Any] = {"role": role, "content": content}
    for field in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, field)) is not None:
            turn[field] = value
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    return turn


def _text(part: TextPart, role: str) -> str:
    text = part.text if part.type == "text" else None
    if part.type == "refusal" and role == "assistant":
        text = part.refusal
    if text is None:
        raise BadRequestError("only text is supported in messages", "messages")
    return text


def _call(call: ToolCall) -> dict[str, Any]:
    """Convert a tool call to the form that chat templates expect: with its arguments as an object."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"the arguments of the tool call {call.function.name!r:.100} are no JSON object: {error}"
            raise BadRequestError(reason, "messages") from None
    identity = {} if call.id is None else {"id": call.id}
    return {**identity, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
