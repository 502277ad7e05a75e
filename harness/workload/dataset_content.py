"""Contents of datasets: prompts of conversations, and jobs of agents, in an order drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from harness.datasets.agents import AgentJobs, AgentTurn
from harness.datasets.dataset import Conversation, Dataset
from harness.datasets.jobs import Call, Job, message_text
from harness.errors import UsageError
from harness.loadgen.live_answers import LiveAnswer, answer_marker, call_marker, fill_body, fill_text
from harness.models.text_tokens import COMMON_WORDS, load_tokenizer
from harness.traces import sampling
from harness.traces.fit import room
from harness.workload.content import Content, Ints, at_quantiles
from harness.workload.planned_requests import Message, PlannedRequest, PromptSource

#: The stream of the seed that draws the order; lower ones are for times and lengths.
ORDER = 3
#: Most tokens of an answer by default, and tokens of answers that were not recorded.
MAX_OUTPUT = 256
#: Conversations that the lengths of prompts are taken from.
SAMPLE = 256
#: Characters of a token where the tokenizer is unknown: at least so many in English text.
CHARACTERS = 3

#: Words before a conversation, and most tokens that they are taken to have when it is fitted to a context.
NONCE_WORDS, NONCE_TOKENS = 4, 16
#: Conversations that begin with so many equal characters, about a block of a cache, get equal words.
EQUAL_CHARACTERS = 64

#: Tokens of a template that each message of a job is taken to have.
TEMPLATE_TOKENS = 8

Turns = Literal["live", "recorded"]
#: The calls of a conversation that fit the context, with their requests.
Planned = list[tuple[Call, PlannedRequest]]


def _order(n: int, shape_seed: int) -> list[int]:
    """Draw an order of `n` prompts: their places."""
    order: list[int] = np.argsort(sampling.uniforms(n, shape_seed, ORDER), kind="stable").tolist()
    return order


def _none_fits(content: str, context: int) -> UsageError:
    return UsageError(
        f"no {content} fits a context of {context} tokens",
        "lower --max-output-len, or use a model with a longer context",
    )


@dataclass(frozen=True)
class DatasetContent(Content):
    """Prompts of conversations and jobs: only the first of each, or with `turns` all of them as a session.

    Conversations of one turn make no session, and are left out where there are longer ones.

    The answers before a question are those `recorded`, or the engine's own (`live`). A call that does not fit
    the context is left out, with all that need it; a conversation whose first does not is left out.

    Each conversation begins with a few words of its load's seed, so that no cache has it from another load.
    They are the same for conversations that begin alike, which so share as much as before, and others each
    time that the dataset begins anew.

    Attributes:
        tokenizer: The model's; None if it is unknown: prompts are then text alone.
        context: Tokens of a prompt and its answer together.
        exact: Each answer is as long as the recorded one; otherwise it ends by itself or at `max_output`.
        same: Conversations are sent as they are.
    """

    dataset: Dataset
    tokenizer: Tokenizer | None
    context: int
    exact: bool
    max_output: int
    turns: Turns | None = None
    same: bool = False
    _planned: dict[int, Planned] = field(default_factory=dict, repr=False, compare=False)

    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        """Plan requests of `n` conversations."""
        taken = islice(self._sessions(shape_seed), first, first + n)
        sessions = (self._begin_with(_words(seed, times, it[0][1].text or ""), it) for times, it in taken)
        if self.turns is None:
            return [replace(session[0][1], index=index) for index, session in enumerate(sessions)]
        requests: list[PlannedRequest] = []
        for number, session in enumerate(sessions):
            begin = len(requests)
            for turn, (call, planned) in enumerate(session):
                after = tuple(begin + place for place in call.after)
                request = replace(planned, index=begin + turn, after=after, session=number, turn=turn)
                requests.append(_live(request, call, begin) if self.turns == "live" else request)
        return requests

    def lengths(self, n: int, shape_seed: int, first: int = 0) -> tuple[Ints, Ints]:
        """The tokens of the words before a conversation are added: to encode all prompts would take long."""
        words = 0 if self.same else len(encode(self.tokenizer, _words(0, 0, "")))
        sessions = islice(self._sessions(shape_seed), first, first + n)
        calls = [it for _, planned in sessions for it in (planned if self.turns else planned[:1])]
        live = self.turns == "live"  # then only first prompts are known in advance
        inputs = [0 if live and call.quoted else len(request.prompt) + words for call, request in calls]
        outputs = [request.output_tokens for _, request in calls]
        return np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64)

    def input_lengths(self, size: int) -> list[int]:
        sample = islice(self._sessions(0), SAMPLE)
        return at_quantiles([len(session[0][1].prompt) or 1 for _, session in sample], size)

    @property
    def dropped(self) -> int:
        """Number of conversations that were reached and do not fit the context."""
        return sum(not session for session in self._planned.values())

    @property
    def prompts(self) -> int | None:
        if not self.same:
            return None
        return len(self._conversations) - self.dropped

    @property
    def about(self) -> dict[str, str | None]:
        dataset = self.dataset
        notes = [dataset.note] if dataset.note else []
        if dataset.skipped:
            notes.append(f"{dataset.skipped:,} entries without a question of text left out")
        fields = {key: getattr(dataset, key) for key in ("name", "licence", "sha256")}
        return fields | {"note": "; ".join(notes) or None}

    @property
    def text(self) -> str:
        sent = "the first prompt of each conversation"
        if self.turns is not None:
            answers = "the engine's own" if self.turns == "live" else "the recorded"
            sent = f"whole conversations with {answers} answers"
        words = "" if self.same else f"after {NONCE_WORDS} words of the load, "
        ends = "answers as long as the recorded ones" if self.exact else "answers that end by themselves"
        return f"dataset {self.dataset.name}: {words}{sent}, {ends}, of at most {self.max_output} tokens"

    @cached_property
    def _conversations(self) -> tuple[Conversation | Job, ...]:
        """Conversations that may be sent, whether or not they fit."""
        every = self.dataset.conversations
        if self.turns is None:
            return every
        return tuple(it for it in every if it.size > 1) or every

    def _begin_with(self, words: str, session: Planned) -> Planned:
        """Put the words before a conversation."""
        if self.same:
            return session
        begun = []
        for call, request in session:
            first, *others = request.messages or ()
            messages = (_with_content(first, words + (first["content"] or "")), *others)
            text = as_text(messages)
            prompt = encode(self.tokenizer, text)
            begun.append((call, replace(request, prompt=prompt, text=text, messages=messages)))
        return begun

    def _sessions(self, shape_seed: int) -> Iterator[tuple[int, Planned]]:
        """Yield the conversations that fit, in an order of the seed, again and again, with how often each
        came before."""
        conversations = self._conversations
        order, planned = _order(len(conversations), shape_seed), self._planned
        for times in count():
            for place in order:
                if place not in planned:
                    planned[place] = self._session(conversations[place])
                if planned[place]:
                    yield times, planned[place]
            if not any(planned.values()):
                raise _none_fits(f"prompt of {self.dataset.name}", self.context)

    def _session(self, conversation: Conversation | Job) -> Planned:
        """Plan a conversation's requests, without places in a load; none if the first does not fit."""
        planned: Planned = []
        places: dict[int, int] = {}
        calls = conversation.calls
        for number, call in enumerate(calls if self.turns else calls[:1]):
            lacks_answer = any(calls[place].answer is None for _, place in call.quoted)
            if not places.keys() >= {*call.after} or (self.turns == "recorded" and lacks_answer):
                continue
            quoted = [(position, places[place]) for position, place in call.quoted if place in places]
            messages = cast("tuple[Message, ...]", call.messages)
            text, output = as_text(messages), self._output(call)
            prompt = encode(self.tokenizer, text)
            if call.tools or any("tool_calls" in message for message in messages):
                text_of_tools = msgspec.json.encode(call.tools).decode()
                used = self._tokens(text_of_tools) + TEMPLATE_TOKENS * len(messages)
            else:
                used = 0
            if self.turns == "live":  # the engine's own answers are as long as they may be
                blank = {position for position, _ in quoted}
                rest = as_text([_with_content(m, "") if i in blank else m for i, m in enumerate(messages)])
                used += self._tokens(rest) + sum(planned[place][1].output_tokens for _, place in quoted)
            else:
                used += _count(prompt, text)
            used += 0 if self.same else NONCE_TOKENS
            if used + output > room(self.context):
                continue
            places[number] = len(planned)
            request = PlannedRequest(
                0, None, prompt, output, text=text, messages=messages,
                tools=call.tools, think_s=call.think_s if planned else None, category=conversation.category,
            )  # fmt: skip
            after = tuple(places[place] for place in call.after)
            planned.append((replace(call, after=after, quoted=tuple(quoted)), request))
        return planned if 0 in places else []

    def _tokens(self, text: str) -> int:
        return _count(encode(self.tokenizer, text), text)

    def _output(self, call: Call) -> int:
        answer = call.answer
        if self.exact and call.output_tokens is not None:
            return min(call.output_tokens, self.max_output)
        if not self.exact or answer is None:
            return self.max_output
        if self.tokenizer is None:
            tokens = len(answer) // CHARACTERS
        else:  # an answer does not begin a sequence
            tokens = len(self.tokenizer.encode(answer, add_special_tokens=False).ids)
        return max(1, min(tokens, self.max_output))


def _words(seed: int, times: int, text: str) -> str:
    """Return the words before a conversation with that first prompt, of a load of that seed."""
    begin = text[:EQUAL_CHARACTERS]
    drawn = int.from_bytes(blake2b(f"{seed} {times} {begin}".encode()).digest(), "big")
    words = []
    for _ in range(NONCE_WORDS):
        drawn, place = divmod(drawn, len(COMMON_WORDS))
        words.append(COMMON_WORDS[place])
    return f"{' '.join(words).capitalize()}.\n\n"


def encode(tokenizer: Tokenizer | None, text: str) -> NDArray[np.int32]:
    """Return the token ids of a text as a server makes them: (T,), or (0,) without a tokenizer."""
    return np.array([] if tokenizer is None else tokenizer.encode(text).ids, dtype=np.int32)


def _count(prompt: NDArray[np.int32], text: str) -> int:
    """Number of tokens of a prompt; without a tokenizer estimated by its text."""
    return len(prompt) or len(text) // CHARACTERS


def as_text(messages: Sequence[Message]) -> str:
    """Join a conversation to one text that ends where the answer begins; a single question stays as it is."""
    if len(messages) == 1:
        return messages[0]["content"] or ""
    parts = [f"{message['role'].capitalize()}: {message_text(message)}" for message in messages]
    return "\n\n".join([*parts, "Assistant:"])


def _with_content(message: Message, content: str) -> Message:
    return {**message, "content": content}


def _live(request: PlannedRequest, call: Call, begin: int) -> PlannedRequest:
    """Put a marker for each answer before its request, and leave out token ids, which are unknown yet."""
    if not call.quoted or request.messages is None:
        return request
    messages = list(request.messages)
    for position, place in call.quoted:
        message = _with_content(messages[position], answer_marker(begin + place))
        if calls := message.get("tool_calls"):
            marked = (call_marker(begin + place, number, it["function"]) for number, it in enumerate(calls))
            message["tool_calls"] = [
                {**it, "function": {**it["function"], "arguments": marker}}
                for it, marker in zip(calls, marked, strict=True)
            ]
        messages[position] = message
    return replace(
        request,
        prompt=np.array([], dtype=np.int32),
        text=as_text(messages),
        messages=tuple(messages),
        answers=tuple(sorted({begin + place for _, place in call.quoted})),
    )


def answered(requests: Sequence[PlannedRequest]) -> list[int]:
    """Return the requests whose answers go into others."""
    return sorted({index for request in requests for index in request.answers})


def with_answers(
    requests: Sequence[PlannedRequest], answers: Mapping[int, LiveAnswer], tokenizer: Path | None
) -> Sequence[PlannedRequest]:
    """Return the requests as they were sent, with the answers that came in the place of markers.

    Args:
        answers: Each answer by its request.
        tokenizer: Folder of the tokenizer that makes the token ids; None if it is unknown.
    """
    if not answered(requests):
        return requests
    encoding = None if tokenizer is None else load_tokenizer(tokenizer)

    def filled(request: PlannedRequest) -> PlannedRequest:
        if not request.answers or request.text is None or request.messages is None:
            return request
        text = fill_text(request.text, answers)
        messages = msgspec.json.decode(fill_body(msgspec.json.encode(request.messages), answers))
        return replace(request, prompt=encode(encoding, text), text=text, messages=tuple(messages))

    return [filled(request) for request in requests]


@dataclass(frozen=True)
class AgentContent(Content):
    """Each job as a session. A turn that does not fit the context is left out, with all that need it."""

    agent_jobs: AgentJobs
    vocab_size: int
    context: int
    max_output: int | None = None
    same: bool = False

    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        """Plan requests of `n` jobs. Blocks are equal if their ids are; a job that comes again has others."""
        source = PromptSource(self.vocab_size, 0 if self.same else seed, "agents")
        block_size = self.agent_jobs.block_size
        requests: list[PlannedRequest] = []
        for session, (place, rounds) in enumerate(self._places(n, shape_seed, first)):
            for turn, request in enumerate(self._jobs[place]):
                index = len(requests)
                blocks = [block + (rounds << 100) for block in request.block_ids]
                number = (first + session) << 32 | turn
                prompt = source.shared(number, request.input_tokens, blocks, block_size)
                after = tuple(index - turn + place for place in request.after)
                think_s = request.think_s if turn else None
                requests.append(
                    PlannedRequest(
                        index, None, prompt, self._output(request), after,
                        think_s=think_s, session=session, turn=turn,
                    )
                )  # fmt: skip
        return requests

    def lengths(self, n: int, shape_seed: int, first: int = 0) -> tuple[Ints, Ints]:
        turns = [turn for place, _ in self._places(n, shape_seed, first) for turn in self._jobs[place]]
        inputs = np.array([turn.input_tokens for turn in turns], dtype=np.int64)
        return inputs, np.array([self._output(turn) for turn in turns], dtype=np.int64)

    def input_lengths(self, size: int) -> list[int]:
        return at_quantiles([turn.input_tokens for job in self._jobs for turn in job], size)

    @property
    def about(self) -> dict[str, str | None]:
        jobs = self.agent_jobs
        return {"name": jobs.name, "sha256": jobs.sha256}

    @property
    def dropped(self) -> int:
        """Number of turns that do not fit the context, and of all after them."""
        return sum(map(len, self.agent_jobs.jobs)) - sum(map(len, self._jobs))

    @property
    def text(self) -> str:
        return f"{len(self._jobs)} jobs of agents of {self.agent_jobs.origin}"

    @cached_property
    def _jobs(self) -> list[tuple[AgentTurn, ...]]:
        """Jobs whose first turn fits, each as far as it fits."""
        jobs = [fitting for job in self.agent_jobs.jobs if (fitting := self._fitting(job))]
        if not jobs:
            raise _none_fits(f"job of {self.agent_jobs.name}", self.context)
        return jobs

    def _fitting(self, job: Sequence[AgentTurn]) -> tuple[AgentTurn, ...]:
        kept: list[AgentTurn] = []
        places: dict[int, int] = {}
        for number, turn in enumerate(job):
            fits = turn.input_tokens + self._output(turn) <= room(self.context)
            if fits and places.keys() >= {*turn.after}:
                places[number] = len(kept)
                kept.append(replace(turn, after=tuple(places[place] for place in turn.after)))
        return tuple(kept) if 0 in places else ()

    def _output(self, turn: AgentTurn) -> int:
        return turn.output_tokens if self.max_output is None else min(turn.output_tokens, self.max_output)

    def _places(self, n: int, shape_seed: int, first: int) -> list[tuple[int, int]]:
        """Return jobs in an order of the seed, again and again: places, and how often each came before."""
        jobs = len(self._jobs)
        order = _order(jobs, shape_seed)
        return [(order[i % jobs], i // jobs) for i in range(first, first + n)]
