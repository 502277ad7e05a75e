"""Jobs of coding agents: lengths, shared prefixes and times of their requests, without text.

Weka's kv-cache-tester publishes jobs as JSON objects, a file each or a line each: `block_size`,
`hash_id_scope` (`local`: the ids are the job's own; `global`: equal ids in all jobs are equal blocks) and
`requests`, each with `t` (seconds since the job began), `in` and `out` (tokens), `hash_ids` (of the whole
blocks of its input), and in newer files `api_time` and `think_time` (seconds that the answer took, and that
passed before the request). An entry of `type` `subagent` has the requests of another agent: the first comes
after the main agent's request before it, and the main agent's next one waits for those that had ended.
(github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md)

TraceLab (arXiv 2606.30560, CC BY 4.0; github.com/uw-syfi/TraceLab, README.md and artifacts/utils/README.md)
publishes sessions as JSON lines, also compressed (`.jsonl.gz`); each is one request of an agent to its model:
`provider` and `session_id`, `round_index` (its place in the session), `input_tokens_total`, of which
`prefix_tokens` came from the provider's cache, `output_tokens`, and `timing_events` in order, each with an
`event_type` and a `timestamp`. There is no text and there are no ids of blocks, so shared prefixes are
inferred: a request that is as long as the one before it or longer begins with that one's prompt; a shorter
one, as after the agent summed up its context, shares what the provider's cache had of it. Sessions share
nothing with each other. The time before a request is from the last event of the answer before it to the last
event that is input of the request.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from harness.datasets.jobs import decoded_lines, utc
from harness.errors import UsageError

Tokens = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Line = TypeVar("Line")
#: Places of turns in their job.
Turns = tuple[int, ...]
WEKA_HINT = "give a job's JSON file, JSON lines, or a folder of such files, as kv-cache-tester has them"
TRACELAB_HINT = "give TraceLab's syfi_coding_trace.jsonl.gz, a part of it, or a folder of such files"
BLOCK_TOKENS = 64
_ANSWER = ("reasoning", "text", "tool_call")
_INPUT = ("user_message", "tool_result")


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """A request of a job.

    Attributes:
        blocks: Runs of consecutive ids of the leading blocks of its input.
        think_s: Seconds between the last of the answers before it and itself, in which tools run.
        after: Turns of the job, before it, whose answers it needs.
    """

    input_tokens: int
    output_tokens: int
    blocks: tuple[range, ...]
    think_s: float
    after: Turns = ()

    @property
    def block_ids(self) -> list[int]:
        return [block for run in self.blocks for block in run]


@dataclass(frozen=True)
class AgentJobs:
    """Jobs of turns."""

    name: str
    jobs: tuple[tuple[AgentTurn, ...], ...]
    block_size: int
    sha256: str
    origin: str


def runs_of(ids: Iterable[int]) -> tuple[range, ...]:
    """Return the ids in their order, consecutive ones as one range."""
    runs: list[range] = []
    for number in ids:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return tuple(runs)


def read_lines(path: Path, kind: type[Line], digest: hashlib._Hash, hint: str) -> Iterator[Line]:
    """Yield each line of a file, or of all files of a folder in the order of their names.

    Args:
        digest: Updated with the bytes of the files as stored.

    Raises:
        UsageError: A file cannot be read, or a line is no such object.
    """
    for file in sorted(path.glob("*.json*")) if path.is_dir() else [path]:
        try:
            raw = file.read_bytes()
            digest.update(raw)
            lines = gzip.GzipFile(fileobj=io.BytesIO(raw)) if file.suffix == ".gz" else io.BytesIO(raw)
            yield from (line for _, line in decoded_lines(lines, kind, file, hint))
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{file} cannot be read: {reason}", hint) from None


class _WekaRequest(msgspec.Struct):
    type: str
    t: Seconds
    input_tokens: Tokens = msgspec.field(name="in", default=0)
    output_tokens: Tokens = msgspec.field(name="out", default=0)
    hash_ids: tuple[int, ...] = ()
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    duration_ms: Seconds = 0.0  # of a subagent
    requests: list[_WekaRequest] = []

    @property
    def is_answered(self) -> bool:
        return bool(self.input_tokens and self.output_tokens)


class _WekaJob(msgspec.Struct):
    requests: list[_WekaRequest]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    hash_id_scope: str = "local"


def read_weka(path: Path) -> AgentJobs:
    """Read the jobs of a file or a folder. Raises UsageError if one is malformed."""
    digest = hashlib.sha256()
    files = list(read_lines(path, _WekaJob, digest, WEKA_HINT))
    jobs = [turns for number, job in enumerate(files) if (turns := _weka_turns(job, number))]
    sizes = {job.block_size for job in files}
    if len(sizes) > 1:
        raise UsageError(f"{path} has jobs with blocks of several sizes", WEKA_HINT)
    return AgentJobs(path.stem, tuple(jobs), max(sizes, default=1), digest.hexdigest(), str(path))


def _weka_turns(job: _WekaJob, number: int) -> tuple[AgentTurn, ...]:
    """Return the requests that make an answer, in order of time, a subagent's after that which began it."""
    first_id = 0 if job.hash_id_scope == "global" else (number + 1) << 64
    turns: list[AgentTurn] = []
    ends: list[float] = []

    def add(request: _WekaRequest, after: Turns, t: float, think_s: float | None) -> Turns:
        if think_s is None:
            think_s = max(0.0, t - max((ends[place] for place in after), default=t))
        blocks = runs_of(first_id + block for block in request.hash_ids)
        turns.append(AgentTurn(request.input_tokens, request.output_tokens, blocks, think_s, after))
        ends.append(t + (request.api_time or 0.0))
        return (len(turns) - 1,)

    main: Turns = ()
    running: list[tuple[float, Turns]] = []  # when each subagent had ended, and its last turn
    for request in sorted(job.requests, key=lambda request: request.t):
        if request.type == "subagent":
            latest = main
            for inner in sorted((it for it in request.requests if it.is_answered), key=lambda it: it.t):
                t = inner.t if inner.t >= request.t else request.t + inner.t
                latest = add(inner, latest, t, None if latest == main else inner.think_time)
            if latest != main:
                running.append((max(request.t + request.duration_ms / 1e3, ends[latest[0]]), latest))
        elif request.is_answered:
            joined = [turn for end, last in running if end <= request.t for turn in last]
            running = [it for it in running if it[0] > request.t]
            main = add(request, (*main, *joined), request.t, None if joined else request.think_time)
    return tuple(turns)


class _Event(msgspec.Struct):
    event_type: str
    timestamp: datetime  # of UTC where no zone is given

    def __post_init__(self) -> None:
        self.timestamp = utc(self.timestamp)


class _Round(msgspec.Struct):
    session_id: str
    round_index: int
    input_tokens_total: Tokens
    output_tokens: Tokens
    prefix_tokens: Tokens = 0
    provider: str | None = None
    timing_events: list[_Event] = []

    @property
    def input_at(self) -> datetime | None:
        """Time of the last input before anything is answered."""
        inputs = takewhile(lambda event: event.event_type not in _ANSWER, self.timing_events)
        return max((event.timestamp for event in inputs if event.event_type in _INPUT), default=None)

    @property
    def answered_at(self) -> datetime | None:
        """Time of the last event of the answer."""
        events = (event.timestamp for event in self.timing_events if event.event_type in _ANSWER)
        return max(events, default=None)


def read_tracelab(path: Path) -> AgentJobs:
    """Read the sessions of a file or a folder, in the order in which they first appear.

    Raises:
        UsageError: A line is malformed.
    """
    digest = hashlib.sha256()
    sessions: dict[tuple[str | None, str], list[_Round]] = {}
    for line in read_lines(path, _Round, digest, TRACELAB_HINT):
        sessions.setdefault((line.provider, line.session_id), []).append(line)
    jobs = [
        turns for number, rounds in enumerate(sessions.values()) if (turns := _tracelab_turns(rounds, number))
    ]
    name = path.name.split(".")[0]
    return AgentJobs(name, tuple(jobs), BLOCK_TOKENS, digest.hexdigest(), str(path))


def _tracelab_turns(rounds: list[_Round], number: int) -> tuple[AgentTurn, ...]:
    """Return the rounds that make an answer, in order; each has the blocks that it shares and new ones."""
    following = (number + 1) << 64
    turns: list[AgentTurn] = []
    before: _Round | None = None
    for turn in sorted(rounds, key=lambda it: it.round_index):
        tokens = turn.input_tokens_total
        if not tokens or not turn.output_tokens:
            continue
        shared: tuple[range, ...] = ()
        wait_s = 0.0
        if before is not None:
            longest = before.input_tokens_total
            common = longest if tokens >= longest else turn.prefix_tokens
            shared = _head(turns[-1].blocks, min(common, tokens) // BLOCK_TOKENS)
            wait_s = _wait_s(before, turn)
        new = range(following, following + tokens // BLOCK_TOKENS - sum(map(len, shared)))
        if shared and shared[-1].stop == new.start:
            shared, new = shared[:-1], range(shared[-1].start, new.stop)
        following = max(following, new.stop)
        after = (len(turns) - 1,) if turns else ()
        turns.append(AgentTurn(tokens, turn.output_tokens, (*shared, new), wait_s, after))
        before = turn
    return tuple(turns)


def _head(runs: tuple[range, ...], blocks: int) -> tuple[range, ...]:
    """Return the first `blocks` blocks."""
    head = []
    for run in runs:
        head.append(run[:blocks])
        blocks -= len(head[-1])
    return tuple(run for run in head if run)


def _wait_s(before: _Round, turn: _Round) -> float:
    """Return the seconds from an answer to the next request; 0 if the times are unknown."""
    if before.answered_at is None or turn.input_at is None:
        return 0.0
    return max(0.0, (turn.input_at - before.answered_at).total_seconds())


#: Reader of a file or a folder, and a hint on what such files are, by the word before the colon.
FORMATS: dict[str, tuple[Callable[[Path], AgentJobs], str]] = {
    "weka": (read_weka, WEKA_HINT),
    "tracelab": (read_tracelab, TRACELAB_HINT),
}


def is_agent_jobs(dataset: str) -> bool:
    """Return whether `--dataset` names jobs of agents: `weka:PLACE`, `tracelab:PLACE`."""
    return dataset.partition(":")[0] in FORMATS and ":" in dataset


def read_agent_jobs(dataset: str) -> AgentJobs:
    """Read the jobs that `FORMAT:PLACE` names.

    Raises:
        UsageError: There are none, or a line is malformed.
    """
    kind, _, place = dataset.partition(":")
    read, hint = FORMATS[kind]
    path = Path(place).expanduser()
    agent_jobs = read(path)
    if not agent_jobs.jobs:
        raise UsageError(f"{path} has no job of an agent", hint)
    return agent_jobs
