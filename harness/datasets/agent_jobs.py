"""Jobs of coding agents as Weka's kv-cache-tester publishes them: lengths, blocks and times, no text.

A job is a JSON object, a file each or a line each: `block_size`, `hash_id_scope` (`local`: the ids are the
job's own; `global`: equal ids in all jobs are equal blocks) and `requests`, each with `t` (seconds since the
job began), `in` and `out` (tokens), `hash_ids` (of the whole blocks of its input), and in newer files
`api_time` and `think_time` (seconds that the answer took, and that passed before the request). Requests of
`type` `subagent` hold a job of their own and are left out.
(github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from harness.errors import UsageError

PREFIX = "weka:"
_HINT = "give a job's JSON file, JSON lines, or a folder of such files, as kv-cache-tester has them"
_Tokens = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """A request of a job: tokens in and out, ids of the leading blocks of its input, and the seconds between
    the answer before it and itself, in which tools run."""

    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    think_s: float


@dataclass(frozen=True)
class AgentJobs:
    """Jobs of turns. `subagents` were left out of them."""

    name: str
    jobs: tuple[tuple[AgentTurn, ...], ...]
    block_size: int
    sha256: str
    origin: str
    subagents: int


class _Request(msgspec.Struct):
    type: str
    t: _Seconds
    input_tokens: _Tokens = msgspec.field(name="in", default=0)
    output_tokens: _Tokens = msgspec.field(name="out", default=0)
    hash_ids: tuple[int, ...] = ()
    api_time: _Seconds | None = None
    think_time: _Seconds | None = None


class _Job(msgspec.Struct):
    requests: list[_Request]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    hash_id_scope: str = "local"


def read_agent_jobs(place: str) -> AgentJobs:
    """The jobs of a file or a folder. Raises UsageError where there are none, or one is malformed."""
    path = Path(place).expanduser()
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    digest, decoder = hashlib.sha256(), msgspec.json.Decoder(_Job)
    found: list[_Job] = []
    for file in files:
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}", _HINT) from None
        digest.update(raw)
        for number, line in enumerate(raw.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                found.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"{file}, line {number}: {error}", _HINT) from None
    jobs = [turns for number, job in enumerate(found) if (turns := _turns(job, number))]
    sizes = {job.block_size for job in found}
    if not jobs or len(sizes) > 1:
        what = "has jobs with blocks of several sizes" if len(sizes) > 1 else "has no job of an agent"
        raise UsageError(f"{path} {what}", _HINT)
    subagents = sum(request.type == "subagent" for job in found for request in job.requests)
    return AgentJobs(path.stem, tuple(jobs), sizes.pop(), digest.hexdigest(), str(path), subagents)


def _turns(job: _Job, number: int) -> tuple[AgentTurn, ...]:
    """The requests that make an answer, in order of time."""
    own = 0 if job.hash_id_scope == "global" else (number + 1) << 64
    asked = [request for request in job.requests if request.type != "subagent" and request.output_tokens]
    asked = sorted((request for request in asked if request.input_tokens), key=lambda request: request.t)
    turns = []
    for before, request in zip([None, *asked], asked, strict=False):
        think_s = request.think_time
        if think_s is None:
            think_s = 0.0 if before is None else max(0.0, request.t - before.t - (before.api_time or 0.0))
        blocks = tuple(own + block for block in request.hash_ids)
        turns.append(AgentTurn(request.input_tokens, request.output_tokens, blocks, think_s))
    return tuple(turns)
