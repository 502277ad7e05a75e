"""Sessions of coding agents as TraceLab publishes them (arXiv 2606.30560, CC BY 4.0).

JSON lines, also compressed (`.jsonl.gz`); each is one request of an agent to its model: `provider` and
`session_id`, `round_index` (its place in the session), `input_tokens_total`, of which `prefix_tokens` came
from the provider's cache, `output_tokens`, and `timing_events` in order, each with an `event_type` and a
`timestamp`. (github.com/uw-syfi/TraceLab, README.md, "Data format", and artifacts/utils/README.md)

There is no text and there are no ids of blocks, so what prompts share is inferred: a request that is as long
as the one before it or longer begins with that one's prompt; a shorter one, as after the agent summed up its
context, shares what the provider's cache had of it. Sessions share nothing with each other. The time before a
request is from the last event of the answer before it to the last event that is input of the request.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import msgspec

from harness.datasets.agent_files import Tokens, read_lines
from harness.datasets.agent_jobs import AgentJobs, AgentTurn

HINT = "give TraceLab's syfi_coding_trace.jsonl.gz, a part of it, or a folder of such files"
BLOCK_TOKENS = 64
_ANSWER = ("reasoning", "text", "tool_call")
_INPUT = ("user_message", "tool_result")


class _Event(msgspec.Struct):
    event_type: str
    timestamp: datetime  # of UTC where no zone is given

    def __post_init__(self) -> None:
        if self.timestamp.tzinfo is None:
            self.timestamp = self.timestamp.replace(tzinfo=UTC)


class _Round(msgspec.Struct):
    session_id: str
    round_index: int
    input_tokens_total: Tokens
    output_tokens: Tokens
    prefix_tokens: Tokens = 0
    provider: str | None = None
    timing_events: list[_Event] = []

    @property
    def asked(self) -> datetime | None:
        """When its input was there: the last of it before anything is answered."""
        heard = takewhile(lambda event: event.event_type not in _ANSWER, self.timing_events)
        return max((event.timestamp for event in heard if event.event_type in _INPUT), default=None)

    @property
    def answered(self) -> datetime | None:
        events = (event.timestamp for event in self.timing_events if event.event_type in _ANSWER)
        return max(events, default=None)


def read_tracelab(path: Path) -> AgentJobs:
    """The sessions of a file or a folder, in the order in which they first appear.

    Raises UsageError where a line is malformed.
    """
    digest = hashlib.sha256()
    sessions: dict[tuple[str | None, str], list[_Round]] = {}
    for found in read_lines(path, _Round, digest, HINT):
        sessions.setdefault((found.provider, found.session_id), []).append(found)
    jobs = [turns for number, rounds in enumerate(sessions.values()) if (turns := _turns(rounds, number))]
    name = path.name.split(".")[0]
    return AgentJobs(name, tuple(jobs), BLOCK_TOKENS, digest.hexdigest(), str(path))


def _turns(rounds: list[_Round], number: int) -> tuple[AgentTurn, ...]:
    """The rounds that make an answer, in their order; each has the blocks that it shares and new ones."""
    following = (number + 1) << 64
    turns: list[AgentTurn] = []
    before: _Round | None = None
    for asked in sorted(rounds, key=lambda given: given.round_index):
        tokens = asked.input_tokens_total
        if not tokens or not asked.output_tokens:
            continue
        kept: tuple[range, ...] = ()
        wait_s = 0.0
        if before is not None:
            shared = before.input_tokens_total if tokens >= before.input_tokens_total else asked.prefix_tokens
            kept, wait_s = (
                _head(turns[-1].blocks, min(shared, tokens) // BLOCK_TOKENS),
                _wait_s(before, asked),
            )
        new = range(following, following + tokens // BLOCK_TOKENS - sum(map(len, kept)))
        if kept and kept[-1].stop == new.start:
            kept, new = kept[:-1], range(kept[-1].start, new.stop)
        following = max(following, new.stop)
        turns.append(AgentTurn(tokens, asked.output_tokens, (*kept, new), wait_s))
        before = asked
    return tuple(turns)


def _head(runs: tuple[range, ...], blocks: int) -> tuple[range, ...]:
    """The first so many blocks."""
    found = []
    for run in runs:
        found.append(run[:blocks])
        blocks -= len(found[-1])
    return tuple(run for run in found if run)


def _wait_s(before: _Round, asked: _Round) -> float:
    """From an answer to the next request; 0 where the times are not known."""
    if before.answered is None or asked.asked is None:
        return 0.0
    return max(0.0, (asked.asked - before.answered).total_seconds())
