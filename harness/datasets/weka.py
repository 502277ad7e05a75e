"""Jobs of coding agents as Weka's kv-cache-tester publishes them.

A job is a JSON object, a file each or a line each: `block_size`, `hash_id_scope` (`local`: the ids are the
job's own; `global`: equal ids in all jobs are equal blocks) and `requests`, each with `t` (seconds since the
job began), `in` and `out` (tokens), `hash_ids` (of the whole blocks of its input), and in newer files
`api_time` and `think_time` (seconds that the answer took, and that passed before the request). Requests of
`type` `subagent` hold a job of their own and are left out.
(github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md)
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from harness.datasets.agent_files import Seconds, Tokens, read_lines
from harness.datasets.agent_jobs import AgentJobs, AgentTurn, runs_of
from harness.errors import UsageError

HINT = "give a job's JSON file, JSON lines, or a folder of such files, as kv-cache-tester has them"


class _Request(msgspec.Struct):
    type: str
    t: Seconds
    input_tokens: Tokens = msgspec.field(name="in", default=0)
    output_tokens: Tokens = msgspec.field(name="out", default=0)
    hash_ids: tuple[int, ...] = ()
    api_time: Seconds | None = None
    think_time: Seconds | None = None


class _Job(msgspec.Struct):
    requests: list[_Request]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    hash_id_scope: str = "local"


def read_weka(path: Path) -> AgentJobs:
    """The jobs of a file or a folder. Raises UsageError where there are none, or one is malformed."""
    digest = hashlib.sha256()
    found = list(read_lines(path, _Job, digest, HINT))
    jobs = [turns for number, job in enumerate(found) if (turns := _turns(job, number))]
    sizes = {job.block_size for job in found}
    if len(sizes) > 1:
        raise UsageError(f"{path} has jobs with blocks of several sizes", HINT)
    subagents = sum(request.type == "subagent" for job in found for request in job.requests)
    left_out = f"{subagents} jobs of subagents left out" if subagents else None
    return AgentJobs(path.stem, tuple(jobs), max(sizes, default=1), digest.hexdigest(), str(path), left_out)


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
        blocks = runs_of(own + block for block in request.hash_ids)
        turns.append(AgentTurn(request.input_tokens, request.output_tokens, blocks, think_s))
    return tuple(turns)
