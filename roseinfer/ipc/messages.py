"""The messages between front ends and the engine."""

from __future__ import annotations

import msgspec
import numpy as np

from roseinfer.info import DraftCounts, EngineInfo
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.request.params import Finished, SamplingParams
from roseinfer.tracing.spans import Span

#: A request's id is `front end << OWNER_SHIFT | number`: it says which front end gets its tokens.
OWNER_SHIFT = 56
#: Within a front end, `number` is `replica << REPLICA_SHIFT | number`.
REPLICA_SHIFT = 50
MAX_REPLICAS = 1 << (OWNER_SHIFT - REPLICA_SHIFT)
#: Choices of a submission; the id of its first one is a multiple of it.
MAX_CHOICES = 128
#: The longest profile: its events are in memory until it ends.
MAX_PROFILE_STEPS = 1000


class Submit(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Queue `choices` requests for the same prompt, with ids from `id` on: see SamplingParams.choice.

    `prompt`: int32 token ids as bytes; `submitted`: when it was made (monotonic, s), which may be a step
    before it is read. Requests of the same `client` share its fair share, and those of the same `salt` the
    prefix cache.
    """

    id: int
    prompt: bytes
    params: SamplingParams
    submitted: float
    client: int = 0
    choices: int = 1
    salt: bytes = b""


class Discard(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Drop a request whose client went away."""

    id: int


class Query(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask for the engine's load; a Load answers, in the order of the queries.

    `flush`: forget the prefix cache first.
    """

    flush: bool = False


class StartProfile(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Profile the next `steps` steps into `folder`, for `seconds` at most; a Done answers."""

    folder: str
    steps: int
    with_stack: bool
    seconds: float = 60.0


class StopProfile(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End the profile and write it; a Done answers when it is written."""


class CheckBlocks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Check that every block of the KV cache is free, as it must be without requests; a Done answers."""


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An order was carried out, or why not."""

    error: str | None = None


class Record(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Keep named ranges from now on; with `end`, a Recorded answers with those kept."""

    end: bool = False


class Recorded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Named ranges of the process `pid`."""

    pid: int
    spans: tuple[Span, ...]


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine takes requests from now on."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot start."""

    reason: str


class Tokens(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One step: request ids (int64) and their next tokens (int64) as bytes, those of one request next to each
    other; the requests that ended, and the times so far of requests with stop strings that got their first
    token."""

    ids: bytes
    tokens: bytes
    finished: tuple[Finished, ...]
    begun: tuple[Finished, ...] = ()


class PackedLogprobs(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """StepLogprobs as bytes: of the tokens in the next Tokens, or of prompts where there are `positions`."""

    ids: bytes
    tokens: bytes
    values: bytes
    positions: bytes | None = None

    @classmethod
    def of(cls, step: StepLogprobs) -> PackedLogprobs:
        """Pack `logprobs` as bytes."""
        positions = None if step.positions is None else step.positions.tobytes()
        return cls(step.ids.tobytes(), step.tokens.tobytes(), step.values.tobytes(), positions)

    @property
    def logprobs(self) -> StepLogprobs:
        """Unpack the arrays."""
        ids = np.frombuffer(self.ids, np.int64)
        tokens, values = np.frombuffer(self.tokens, np.int32), np.frombuffer(self.values, np.float32)
        positions = None if self.positions is None else np.frombuffer(self.positions, np.int64)
        return StepLogprobs(ids, tokens.reshape(len(ids), -1), values.reshape(len(ids), -1), positions)


class Load(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine's load between two steps: see Engine's properties."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prompt_tokens: int
    cached_tokens: int
    expert_skew: float = 0.0
    drafts: DraftCounts | None = None
    step_cost_error: float | None = None

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were in the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


#: Messages that are answered with Done, in the order in which they were sent.
Order = StartProfile | StopProfile | CheckBlocks
ToEngine = Submit | Discard | Query | Order | Recorded
FromEngine = Ready | Failed | Tokens | PackedLogprobs | Load | Done | Record
