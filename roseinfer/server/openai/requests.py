"""The bodies of requests, as OpenAI defines them and vLLM extends them."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from roseinfer.ipc.messages import MAX_PROFILE_STEPS
from roseinfer.server.http.errors import BadRequestError

T = TypeVar("T")


class StreamOptions(msgspec.Struct, frozen=True):
    """Which usage a stream carries: at its end, or in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What completions and chats have in common. `return_token_ids` and `return_metrics` add fields to the
    answer."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    top_k: int | None = 0
    seed: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_metrics: bool = False
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    repetition_penalty: float | None = 1.0
    min_p: float | None = 0.0
    stop_token_ids: list[int] | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any]
    echo: bool | None = False
    suffix: str | None = None
    logprobs: int | None = None
    best_of: int | None = None


class TextPart(msgspec.Struct, frozen=True):
    """A piece of a message; only text is understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`. Without a limit, an answer may fill the context."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None


class ProfileRequest(msgspec.Struct, frozen=True):
    """`POST /start_profile`: a torch profile of the engine's next `num_steps` steps (without it: until
    `/stop_profile`), written into `output_dir` within the server's folder for profiles."""

    output_dir: str = "."
    num_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROFILE_STEPS)] = MAX_PROFILE_STEPS
    with_stack: bool = False


def parse(body: bytes | bytearray, kind: type[T]) -> T:
    """The request in `body`. Raises BadRequestError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the body is not a valid request: {error}") from None
