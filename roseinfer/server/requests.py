"""The bodies of `/v1/completions`, as OpenAI defines them and vLLM extends them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from roseinfer.params import SamplingParams
from roseinfer.server.errors import BadRequestError

MAX_CHOICES = 128
MAX_STOPS = 64


class StreamOptions(msgspec.Struct, frozen=True):
    """Which usage a stream carries: at its end, or in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ProfileRequest(msgspec.Struct, frozen=True):
    """`POST /start_profile`: a torch profile of the engine's next `num_steps` steps (without it: until
    `/stop_profile`), written into `output_dir`."""

    output_dir: str
    num_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    with_stack: bool = False


class CompletionRequest(msgspec.Struct, frozen=True):
    """`POST /v1/completions`. `return_token_ids` and `return_metrics` add fields to the answer."""

    prompt: str | list[Any]
    model: str | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    top_k: int | None = 0
    seed: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_metrics: bool = False
    echo: bool = False
    suffix: str | None = None
    logprobs: int | None = None
    best_of: int | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None


@dataclass(frozen=True)
class Work:
    """A checked request: what each answer is generated from."""

    prompts: tuple[str | NDArray[np.int32], ...]
    params: SamplingParams
    n: int
    stops: tuple[str, ...]


T = TypeVar("T")


def parse(body: bytes | bytearray, kind: type[T]) -> T:
    """The request in `body`. Raises BadRequestError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the body is not a valid request: {error}") from None


def check(request: CompletionRequest) -> Work:
    """The work that `request` asks for. Raises BadRequestError for what is wrong or not supported."""
    for name, off in (
        ("echo", request.echo is False),
        ("suffix", not request.suffix),
        ("logprobs", request.logprobs is None),
        ("best_of", request.best_of in (None, request.n)),
        ("presence_penalty", not request.presence_penalty),
        ("frequency_penalty", not request.frequency_penalty),
        ("logit_bias", not request.logit_bias),
    ):
        if not off:
            raise BadRequestError(f"{name} is not supported", name)
    _within("n", request.n, 1, MAX_CHOICES)
    max_tokens = 16 if request.max_tokens is None else request.max_tokens
    _within("max_tokens", max_tokens, 1, 2**31 - 1)
    _within("min_tokens", request.min_tokens, 0, max_tokens)
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
    seed = secrets.randbits(64) if request.seed is None else request.seed % 2**64
    prompts = _prompts(request.prompt)
    if len(prompts) * request.n > MAX_CHOICES:
        raise BadRequestError(f"more than {MAX_CHOICES} answers in one request", "prompt")
    params = SamplingParams(
        max_tokens=max_tokens, min_tokens=request.min_tokens, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed, ignore_eos=request.ignore_eos,
    )  # fmt: skip
    return Work(prompts, params, request.n, stops)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadRequestError(f"{name} must be from {low} to {high}", name)


def _prompts(prompt: str | list[Any]) -> tuple[str | NDArray[np.int32], ...]:
    """A text, texts, token ids, or lists of token ids."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise BadRequestError("prompt is empty", "prompt")
    if all(isinstance(part, str) for part in prompt):
        return tuple(prompt)
    if all(isinstance(part, list) for part in prompt):
        return tuple(_token_ids(part) for part in prompt)
    return (_token_ids(prompt),)


def _token_ids(ids: list[Any]) -> NDArray[np.int32]:
    if not all(type(id) is int and 0 <= id < 2**31 for id in ids):
        raise BadRequestError("prompt must be text, token ids, or lists of either", "prompt")
    return np.array(ids, dtype=np.int32)
