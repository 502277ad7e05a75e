"""Bodies of requests, as OpenAI defines them and vLLM extends them, with all fields that are understood."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from roseinfer.ipc.messages import MAX_CHOICES, MAX_PROFILE_STEPS
from roseinfer.request.params import (
    MAX_BIASED,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_STOP_TOKENS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MIN_REPETITION_PENALTY,
)
from roseinfer.server.http.errors import BadRequestError

T = TypeVar("T")

MAX_STOPS = 64
#: Every new text is searched for them.
MAX_STOP_CHARACTERS = 256
MAX_SALT_CHARACTERS = 256
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

#: Fields on which an answer's tokens do not depend.
ACCEPTED = (
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "request_id",
    "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip
#: Fields on which they would depend, with the values, besides null, that ask for what is done anyway.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}

if TYPE_CHECKING:

    class OtherFields(msgspec.Struct, frozen=True, kw_only=True):
        """Fields of ACCEPTED and NEUTRAL; any other is refused."""

        parallel_tool_calls: Any = None
        tool_choice: Any = None

else:
    OtherFields = msgspec.defstruct(
        "OtherFields",
        [(name, Any, None) for name in (*ACCEPTED, *NEUTRAL)],
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )

_neutral = attrgetter(*NEUTRAL)


def refuse_unsupported(request: msgspec.Struct) -> None:
    """Raise BadRequestError where one of these fields would change the answer to `request`."""
    values = _neutral(request)
    if values.count(None) == len(values):
        return
    for (name, neutral), value in zip(NEUTRAL.items(), values, strict=True):
        if value is not None and value not in neutral:
            raise BadRequestError(f"{name} is not supported", name, "unsupported_parameter")


def _stated(**schema: object) -> msgspec.Meta:
    """State bounds for the OpenAPI document only; `generation` enforces them, with better messages."""
    return msgspec.Meta(extra_json_schema=schema)


Penalty = Annotated[float, _stated(minimum=-MAX_PENALTY, maximum=MAX_PENALTY)]
#: 0 only with `echo`.
Length = Annotated[int, _stated(minimum=0, maximum=MAX_TOKENS)]
Stop = Annotated[str, _stated(minLength=1, maxLength=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[Stop], _stated(maxItems=MAX_STOPS)]
Likeliest = Annotated[int, _stated(minimum=0, maximum=MAX_LOGPROBS)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream: usage at its end, or in every chunk. Chunks are never padded (obfuscation)."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: bool | None = False


class GenerationRequest(OtherFields, frozen=True, kw_only=True):
    """The fields that completions and chats share. null means the default everywhere, and top_k -1 means 0.
    `best_of` must be `n`, as all answers are returned. `return_token_ids` and `return_metrics` add fields to
    the response. Requests with different `cache_salt` do not share the prefix cache."""

    model: str | None = None
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    min_tokens: Annotated[int, _stated(minimum=0)] | None = None
    temperature: Annotated[float, _stated(minimum=0, maximum=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, _stated(exclusiveMinimum=0, maximum=1)] | None = None
    top_k: Annotated[int, _stated(minimum=-1)] | None = None
    min_p: Annotated[float, _stated(minimum=0, maximum=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: (
        Annotated[float, _stated(minimum=MIN_REPETITION_PENALTY, maximum=MAX_REPETITION_PENALTY)] | None
    ) = None
    logit_bias: Annotated[dict[str, float], _stated(maxProperties=MAX_BIASED)] | None = None
    seed: int | None = None
    n: Annotated[int, _stated(minimum=1, maximum=MAX_CHOICES)] | None = None
    best_of: int | None = None
    stop: Stop | Stops | None = None
    stop_token_ids: Annotated[list[int], _stated(maxItems=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_metrics: bool | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    cache_salt: Annotated[str, _stated(minLength=1, maxLength=MAX_SALT_CHARACTERS)] | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any]
    logprobs: Likeliest | None = None


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message; only text is supported, which a refusal of the assistant's is too."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function of a tool call; `arguments` in JSON."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool, which an earlier answer has made."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation. What the template does not use has no effect."""

    role: Annotated[str, _stated(enum=ROLES)]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    function_call: Any = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`. Without a limit, an answer may fill the context. Tools need a server
    with `--tool-call-parser`, or `tool_choice` "none"; the model's template writes them into the prompt.
    `chat_template_kwargs` are more variables of the model's template."""

    messages: list[Message]
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Likeliest | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None


class MessageCount(msgspec.Struct, frozen=True):
    """Messages of a chat that are not decoded."""

    messages: list[msgspec.Raw] = []


class ProfileRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /start_profile`: a torch profile of the engine's next `num_steps` steps, or of those until
    `/stop_profile`, written into `output_dir` within the server's folder for profiles. A request without a
    body has the defaults."""

    output_dir: str = "."
    num_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROFILE_STEPS)] = MAX_PROFILE_STEPS
    with_stack: bool = False


#: msgspec's messages for an unknown field, and for a missing one or the place of a wrong value.
_UNKNOWN = re.compile(r"unknown field `(\w+)`$")
_PLACE = re.compile(r" - at `\$\.(\w+)|missing required field `(\w+)`$")


def parse(body: bytes | bytearray, kind: type[T]) -> T:
    """Decode the request in `body`. Raises BadRequestError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error)
        if unknown := _UNKNOWN.search(reason):
            name = unknown[1]
            message = f"unrecognized request argument: {name}"
            raise BadRequestError(message, name, "unknown_parameter") from None
        place = _PLACE.search(reason)
        message = f"the body is not a valid request: {reason}"
        raise BadRequestError(message, place and (place[1] or place[2])) from None
