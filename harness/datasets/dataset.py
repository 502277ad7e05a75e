"""Prompts and conversations, read from ShareGPT's JSON or from JSON lines.

An entry is `{"prompt", "completion"?}`, `{"messages": [{"role", "content", "think_s"?}]}` as OpenAI's API has
it, its content a text or a list of parts, `{"conversations": [{"from", "value"}]}` as ShareGPT has it, or
`{"turns": [text, …]}`, the questions of one person, as MT-Bench has it. Each may have a `category`.
With `tools`, or messages of tools, `messages` are a job (`jobs.py`), each sent as it is. Other keys are
ignored. An entry with none of these is an error, and so is a message of another role. One with anything but
text, such as an image, is left out, and so is a conversation of ShareGPT's with an unknown speaker.
"""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from harness.datasets import jobs
from harness.datasets.jobs import AGENTPERF_SHA256, AGENTPERF_WHEEL, Call, Job, Json, RecordedMessage
from harness.errors import UsageError

_HINT = "give JSON lines of prompt, messages, conversations or turns, or ShareGPT's JSON (docs/workloads.md)"
_JOB_ROLES = ("system", "developer", "user", "assistant", "tool")
_SPEAKERS = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard"), "assistant"),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, the answer that was recorded (None: none was), and the seconds that the person thought
    between the answer before it and this question."""

    question: str
    answer: str | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order, at least one; `system` is the instruction before them."""

    turns: tuple[Turn, ...]
    system: str | None = None
    category: str | None = None

    @property
    def size(self) -> int:
        """Number of its turns."""
        return len(self.turns)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The turns as requests."""
        messages: list[Json] = [] if self.system is None else [{"role": "system", "content": self.system}]
        calls: list[Call] = []
        quoted: list[tuple[int, int]] = []
        for place, turn in enumerate(self.turns):
            messages.append({"role": "user", "content": turn.question})
            after = (place - 1,) if place else ()
            calls.append(Call(tuple(messages), turn.answer, None, after, turn.think_s, tuple(quoted)))
            quoted.append((len(messages), place))
            messages.append({"role": "assistant", "content": turn.answer or ""})
        return tuple(calls)


@dataclass(frozen=True)
class Dataset:
    """Conversations and jobs in the order of their file; `skipped` entries have no question, or more than
    text."""

    name: str
    conversations: tuple[Conversation | Job, ...]
    sha256: str
    origin: str
    licence: str | None = None
    note: str | None = None
    skipped: int = 0


class _Message(RecordedMessage):
    @property
    def speaks(self) -> str | None:
        """The speaker's role; None if it is unknown."""
        return _SPEAKERS.get((self.role or self.speaker).lower())


class _Entry(msgspec.Struct):
    prompt: str | None = None
    completion: str | None = None
    messages: list[_Message] | None = None
    conversations: list[_Message] | None = None
    turns: list[str] | None = None
    category: Any = None
    tools: Any = None

    def check(self, place: str) -> None:
        """Raise UsageError, with the place of the line, for an entry that cannot be sent as it is meant."""
        if all(it is None for it in (self.prompt, self.messages, self.conversations, self.turns)):
            raise UsageError(f"{place} has no prompt, messages, conversations or turns", _HINT)
        if self.has_tools:
            self._check_tools(place)
            return
        has_question = False
        for number, message in enumerate(self.messages or (), start=1):
            has_question |= message.speaks == "user"
            if message.speaks == "system" and has_question and (message.text or "").strip():
                raise UsageError(
                    f"{place}: message {number} is the system's, after a question, and would not be sent",
                    "move it before the first question, or leave the line out",
                )
            if message.speaks is None:
                role = message.role or message.speaker
                raise UsageError(
                    f"{place}: message {number} is of {role!r}, and would not be sent",
                    f"the roles that are known: {', '.join(_SPEAKERS)}; or leave the line out",
                )
            if message.role.lower() == "user" and message.content is None and message.value is None:
                raise UsageError(
                    f"{place}: message {number} is the user's and has no content",
                    'give it a text, as {"role": "user", "content": "…"}, or leave the message out',
                )

    @property
    def has_tools(self) -> bool:
        """True if it is a job with tools."""
        messages = self.messages or ()
        return self.tools not in (None, [], "[]") or any(
            it.tool_calls or it.role == "tool" for it in messages
        )

    def _check_tools(self, place: str) -> None:
        """Raise UsageError for a job that a server would refuse."""
        tools = [] if self.tools is None else self.tools
        named = isinstance(tools, list) and all(
            isinstance(it, dict) and isinstance(it.get("function"), dict) and it["function"].get("name")
            for it in tools
        )
        if not named:
            raise UsageError(
                f"{place}: `tools` is no list of functions with names",
                'give each as {"type": "function", "function": {"name": "…", "parameters": {…}}}',
            )
        if not self.messages:
            raise UsageError(f"{place} has tools and no messages", "give what the agent sends as `messages`")
        call_ids: set[str] = set()
        for number, message in enumerate(self.messages, start=1):
            if message.role not in _JOB_ROLES:
                raise UsageError(
                    f"{place}: message {number} is of {message.role or message.speaker!r}, and is refused",
                    f"the roles that are known: {', '.join(_JOB_ROLES)}; or leave the line out",
                )
            if message.role == "tool" and message.tool_call_id not in call_ids:
                raise UsageError(
                    f"{place}: message {number} is a tool's, and answers no call before it",
                    "give it the `tool_call_id` of one of the `tool_calls` before it",
                )
            call_ids |= {call.id for call in message.tool_calls or ()}


def read_sharegpt(path: Path, raw: bytes) -> tuple[list[Conversation | Job], int]:
    """Return the conversations of a JSON list, and the number of entries without one. Raises UsageError."""
    try:
        entries = msgspec.json.decode(raw.removeprefix(BOM_UTF8), type=list[_Entry])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not ShareGPT's JSON: {error}", _HINT) from None
    return _conversations(path, entries)


def read_jsonl(path: Path, raw: bytes) -> tuple[list[Conversation | Job], int]:
    """Return the conversations of JSON lines, and the number of lines without one.

    Raises:
        UsageError: A line is malformed.
    """
    entries = []
    for place, entry in jobs.decoded_lines(raw.removeprefix(BOM_UTF8).splitlines(), _Entry, path, _HINT):
        entry.check(place)
        entries.append(entry)
    return _conversations(path, entries)


def _conversations(path: Path, entries: Sequence[_Entry]) -> tuple[list[Conversation | Job], int]:
    conversations = [it for entry in entries if (it := _conversation(entry)) is not None]
    if not conversations:
        raise UsageError(f"{path} has no prompt and no conversation", _HINT)
    return conversations, len(entries) - len(conversations)


def _conversation(entry: _Entry) -> Conversation | Job | None:
    """Join questions with the answers after them.

    An answer before the first question is left out, and so is a conversation that cannot be sent whole.
    Messages of one speaker in a row are one.
    """
    if entry.has_tools:
        if any(message.text is None for message in entry.messages or ()):
            return None
        job = jobs.chain(entry.messages or (), entry.tools or ())
        return job if job.calls else None
    category = entry.category if isinstance(entry.category, str) else None
    if entry.prompt:
        return Conversation((Turn(entry.prompt, entry.completion or None),), category=category)
    if entry.turns:
        return Conversation(tuple(map(Turn, entry.turns)), category=category)
    system, turns = None, list[Turn]()
    for message in entry.messages or entry.conversations or ():
        speaker, text = message.speaks, message.text
        if speaker is None or text is None:
            return None
        if not text.strip():
            continue
        if speaker == "system":
            if turns:
                return None
            system = text if system is None else f"{system}\n\n{text}"
        elif speaker == "user":
            if turns and turns[-1].answer is None:
                turns[-1] = Turn(f"{turns[-1].question}\n\n{text}", None, turns[-1].think_s)
            else:
                turns.append(Turn(text, None, message.think_s))
        elif turns:
            question, before, think_s = turns[-1].question, turns[-1].answer, turns[-1].think_s
            turns[-1] = Turn(question, text if before is None else f"{before}\n\n{text}", think_s)
    return Conversation(tuple(turns), system, category) if turns else None


#: Bytes of a file: conversations take about four times as much memory.
MAX_BYTES = 4 << 30
Reader = Callable[[Path, bytes], tuple[list[Conversation | Job], int]]
READERS: dict[str, Reader] = {"sharegpt": read_sharegpt, "jsonl": read_jsonl}


@dataclass(frozen=True)
class Named:
    """A dataset whose file is known by its digest."""

    file: str
    reader: Reader
    sha256: str
    origin: str
    licence: str
    note: str
    get: str = ""


NAMED = {
    "builtin": Named(
        "builtin.jsonl",
        read_jsonl,
        "9bc59c11e78bd2e3ce86f3208abaf92d65b2177132295d9a4e8819e7a941409c",
        "written for this project",
        "Apache-2.0",
        "396 prompts and conversations made from parts written by hand: varied in kind and length, "
        "not recorded from users",
    ),
    "mt-bench": Named(
        "mt_bench.jsonl",
        read_jsonl,
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        "github.com/lm-sys/FastChat, MT-Bench",
        "Apache-2.0",
        "80 conversations of two questions in eight categories, without answers",
        "`bench traces fetch mt-bench` downloads it from GitHub",
    ),
    "sharegpt": Named(
        "ShareGPT_V3_unfiltered_cleaned_split.json",
        read_sharegpt,
        "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
        "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        "Apache-2.0 by its publisher; the conversations are those of users of ChatGPT",
        "94,145 conversations that users shared",
        "download it from huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered (673 MB) and put "
        "its folder into BENCH_DATASETS",
    ),
}


def _load_jobs(kind: str, place: Path, named: bool) -> Dataset:
    """Return the jobs of agents of a place. Raises UsageError."""
    recorded, digest, left_out = jobs.READERS[kind](place)
    if not any(job.calls for job in recorded):
        raise UsageError(f"{place} has no job of an agent", jobs.HINTS[kind])
    if digest == AGENTPERF_SHA256:
        origin, note = "pypi.org/project/agentperf-local, 0.3.4", "8 tasks of 168 turns, recorded with tools"
        return Dataset("agentperf", tuple(recorded), digest, origin, "Apache-2.0", note)
    if named:
        raise UsageError(
            f"the tasks in {place} are not those of {AGENTPERF_WHEEL}: sha256 {digest}",
            f"give agentperf:{place} to use them, or fetch that wheel",
        )
    return Dataset(place.stem, tuple(recorded), digest, str(place), note=left_out)


@cache
def load_dataset(text: str) -> Dataset:
    """Return a dataset by its name, or as `KIND:PLACE`.

    Raises:
        UsageError: There is none, it cannot be read, or it is not the published file.
    """
    kind, colon, file = text.partition(":")
    if kind in jobs.READERS and (colon or text == "agentperf"):
        place = Path(file).expanduser() if colon else jobs.find_agentperf()
        return _load_jobs(kind, place, not colon)
    named = NAMED.get(text)
    if named is not None:
        path, reader = jobs.find_file(named.file), named.reader
        if path is None:
            raise UsageError(f"dataset {text} is not on this machine ({named.file})", named.get)
    elif colon and kind in READERS:
        path, reader = Path(file).expanduser(), READERS[kind]
    elif not colon and Path(text).expanduser().is_file():
        kind = "jsonl" if text.endswith(".jsonl") else "sharegpt"
        raise UsageError(f"{text!r} is a file, not the name of a dataset", f"write {kind}:{text}")
    else:
        files, places = (f"{kind}:FILE" for kind in READERS), ("otel", "weka", "tracelab")
        names = ", ".join([*NAMED, "agentperf", *files, *(f"{kind}:PLACE" for kind in places)])
        raise UsageError(f"there is no dataset {text!r}", f"give one of {names}")
    raw = _read(path)
    digest = hashlib.sha256(raw).hexdigest()
    if named is not None and digest != named.sha256:
        raise UsageError(
            f"{path} is not the published dataset {text}: sha256 {digest}, expected {named.sha256}",
            f"restore it, or give sharegpt:{path} or jsonl:{path} to use this file",
        )
    conversations, skipped = reader(path, raw)
    for name, published in NAMED.items():
        if published.sha256 == digest:
            source = published.origin, published.licence, published.note
            return Dataset(name, tuple(conversations), digest, *source, skipped)
    return Dataset(path.stem, tuple(conversations), digest, str(path), skipped=skipped)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(
                f"{path} holds over {MAX_BYTES >> 30} GiB of text", "give the part of it to be sent"
            )
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
