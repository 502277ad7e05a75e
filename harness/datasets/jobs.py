"""Jobs of agents with their texts: calls of a model with tools, each of which needs answers before it.

agentperf-local (Apache-2.0, Artificial Analysis) has tasks as JSON lines in its wheel, one line a request of
the task `conversation_id`, in the order of `conversation_idx`: `messages` and `tools` as OpenAI's API has
them, `target_output_tokens`, and `simulated_tool_delay_ms_after`, the time that tools took before the next
request. A request begins with the messages of the one before it, but perhaps for a last one that was thrown
away; then comes the answer to that one.

OpenTelemetry's GenAI spans are read as inference-perf reads them (github.com/kubernetes-sigs/inference-perf,
examples/otel): an object with `spans`, or a folder of such files. A span whose `gen_ai.operation.name` is
`chat` is a call, spans of one `trace_id` are a job. A call needs each answer that is among its messages, by
its text or the ids of its tool calls, and the call that began last of those that had ended before it.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from harness import paths
from harness.errors import UsageError

Content = TypeVar("Content")
#: A message, a tool or a tool call as OpenAI's API has it.
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a job to its model.

    Attributes:
        messages: All of them.
        answer: The text of the recorded answer, with its tool calls; None: not known.
        output_tokens: Length of the recorded answer; None: that of its text.
        after: Calls of the job, before it, whose answers it needs.
        think_s: Seconds from the last of them, or from the beginning of the job, in which tools run.
        quoted: Positions of messages that are recorded answers, each with its call.
    """

    messages: tuple[Json, ...]
    answer: str | None = None
    output_tokens: int | None = None
    after: tuple[int, ...] = ()
    think_s: float = 0.0
    quoted: tuple[tuple[int, int], ...] = ()
    tools: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Job:
    """Calls of an agent and its subagents; each is after those that it needs."""

    calls: tuple[Call, ...]
    category: ClassVar[None] = None

    @property
    def size(self) -> int:
        """Number of its calls."""
        return len(self.calls)


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str = ""


class _Function(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call of a tool in an answer, its arguments as JSON text."""

    id: str
    function: _Function


class RecordedMessage(msgspec.Struct):
    """A message of a file: OpenAI's fields, ShareGPT's `from` and `value`, and two of our own.

    Attributes:
        think_s: Seconds before the request that it is first in.
        once: Whether later requests are without it.
    """

    content: str | list[Part] | None = None
    role: str = ""
    speaker: str = msgspec.field(name="from", default="")
    value: str | None = None
    think_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    once: bool = False

    @property
    def text(self) -> str | None:
        """The message's text; None if it has anything else."""
        if isinstance(self.content, list):
            texts = [part.text for part in self.content if part.type == "text"]
            return "\n".join(texts) if len(texts) == len(self.content) else None
        return self.content or self.value or ""

    @property
    def wire(self) -> Json:
        """The message as a request has it."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.tool_calls:
            calls = (msgspec.to_builtins(call) for call in self.tool_calls)
            message["tool_calls"] = [call | {"type": "function"} for call in calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def message_text(message: Json) -> str:
    """Return what a model reads of a message: its text, and names and arguments of its tool calls."""
    functions = (call["function"] for call in message.get("tool_calls") or ())
    texts = [message.get("content") or "", *(f"{it['name']} {it['arguments']}" for it in functions)]
    return "\n".join(filter(None, texts))


def chain(messages: Iterable[RecordedMessage], tools: Sequence[Json]) -> Job:
    """Return a conversation with tools as calls, one for each answer and one for what follows the last."""
    calls: list[Call] = []
    sent: list[Json] = []
    quoted: list[tuple[int, int]] = []
    once: list[Json] = []
    think_s = 0.0

    def call(answer: str | None) -> None:
        after = (len(calls) - 1,) if calls else ()
        calls.append(Call(tuple(sent), answer, None, after, think_s, tuple(quoted), tuple(tools)))

    for message in messages:
        if message.role == "assistant" and sent and sent[-1]["role"] != "assistant":
            call(message_text(message.wire))
            sent, once, think_s = [it for it in sent if it not in once], [], 0.0
            quoted.append((len(sent), len(calls) - 1))
        sent.append(message.wire)
        once += [sent[-1]] if message.once else []
        think_s = max(think_s, message.think_s)
    if sent and sent[-1]["role"] != "assistant":
        call(None)
    return Job(tuple(calls))


# --- agentperf-local -------------------------------------------------------------------------------------

AGENTPERF_WHEEL = "agentperf_local-0.3.4-py3-none-any.whl"
#: Of the files with its tasks, one after the other.
AGENTPERF_SHA256 = "59c6c1b96525a0da4b30fa900a77d45cab9375d3bcb15a712e52ea38557843f6"
AGENTPERF_HINT = (
    "`bench traces fetch agentperf` downloads it from PyPI; agentperf:PLACE is a wheel of agentperf-local, a "
    "folder of its traces, or one of them"
)
_TRACES = "data/replays/agentperf-default-v1/traces"


class _Row(msgspec.Struct):
    conversation_id: str
    conversation_idx: int
    messages: list[RecordedMessage]
    target_output_tokens: Annotated[int, msgspec.Meta(ge=1)]
    tools: list[dict[str, Any]] = []
    simulated_tool_delay_ms_after: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def find_agentperf() -> Path:
    """Return the place of agentperf-local's tasks: its wheel, or the installed package.

    Raises:
        UsageError: It is not on this machine.
    """
    if (wheel := find_file(AGENTPERF_WHEEL)) is not None:
        return wheel
    package = find_spec("agentperf_local")
    if package is not None and package.submodule_search_locations:
        return Path(package.submodule_search_locations[0]) / _TRACES
    raise UsageError(f"agentperf-local is not on this machine ({AGENTPERF_WHEEL})", AGENTPERF_HINT)


def read_agentperf(place: Path) -> tuple[list[Job], str, str | None]:
    """Read the tasks of a wheel, of a folder of traces or of one trace; the second is their digest.

    Raises:
        UsageError: They cannot be read, or a line is malformed.
    """
    digest, tasks = hashlib.sha256(), dict[str, list[_Row]]()
    for name, raw in _files(place, "*.jsonl", AGENTPERF_HINT, _TRACES):
        digest.update(raw)
        for _, row in decoded_lines(raw.splitlines(), _Row, name, AGENTPERF_HINT):
            tasks.setdefault(row.conversation_id, []).append(row)
    return [_task(rows) for rows in tasks.values()], digest.hexdigest(), None


def _task(rows: list[_Row]) -> Job:
    """Return a task as a chain of calls."""
    rows.sort(key=lambda row: row.conversation_idx)
    sent = [tuple(message.wire for message in row.messages) for row in rows]
    answers: list[str | None] = [None] * len(rows)
    quoted: list[tuple[tuple[int, int], ...]] = [()]
    for place, (before, messages) in enumerate(pairwise(sent)):
        pairs = enumerate(zip(before, messages, strict=False))
        kept = next((i for i, (old, new) in pairs if old != new), min(len(before), len(messages)))
        still = tuple(it for it in quoted[-1] if it[0] < kept)
        if kept < len(messages) and messages[kept]["role"] == "assistant":
            answers[place] = message_text(messages[kept])
            still = (*still, (kept, place))
        quoted.append(still)
    delays_s = [0.0, *(row.simulated_tool_delay_ms_after / 1e3 for row in rows)]
    places = [(i - 1,) if i else () for i in range(len(rows))]
    tokens, tools = [row.target_output_tokens for row in rows], [tuple(row.tools) for row in rows]
    return Job(tuple(map(Call, sent, answers, tokens, places, delays_s, quoted, tools)))


# --- OpenTelemetry ---------------------------------------------------------------------------------------

OTEL_HINT = (
    "give JSON with `spans` as inference-perf reads it (docs/workloads.md), or a folder of such files; "
    "OTLP's resourceSpans are not read"
)


_NEVER = datetime.min.replace(tzinfo=UTC)


class _Span(msgspec.Struct):
    start_time: datetime  # of UTC where no zone is given
    trace_id: str = ""
    span_id: str = ""
    name: str = ""
    end_time: datetime = _NEVER
    attributes: dict[str, Any] = {}
    status: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.start_time = utc(self.start_time)
        self.end_time = max(utc(self.end_time), self.start_time)

    @property
    def is_call(self) -> bool:
        """True if it is a call of a model."""
        chats = self.attributes.get("gen_ai.operation.name") == "chat" or self.name.startswith("chat ")
        return chats and bool(self.attributes.get("gen_ai.input.messages"))

    @property
    def failed(self) -> bool:
        return (self.status or {}).get("code") in (2, "STATUS_CODE_ERROR", "ERROR")

    def value(self, *names: str) -> Any:
        """The first of these attributes that there is; JSON text of a list as that list."""
        values = (self.attributes[name] for name in names if self.attributes.get(name) is not None)
        value = next(values, None)
        if isinstance(value, str) and value.lstrip().startswith("["):
            return msgspec.json.decode(value)
        return value


class _SpansFile(msgspec.Struct):
    spans: list[_Span]


def utc(time: datetime) -> datetime:
    """The time, of UTC where it has no zone."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def read_otel(place: Path) -> tuple[list[Job], str, str | None]:
    """Read the jobs of a file or a folder, in the order in which they first appear; the second is the digest
    of the files, the third says what is left out.

    Raises:
        UsageError: A file cannot be read, or a span is malformed.
    """
    digest, traces, failed = hashlib.sha256(), dict[tuple[str, str], list[_Span]](), 0
    decoder = msgspec.json.Decoder(_SpansFile)
    for name, raw in _files(place, "*.json", OTEL_HINT):
        digest.update(raw)
        for span in _decoded(decoder, raw, name, OTEL_HINT).spans:
            failed += span.is_call and span.failed
            if span.is_call and not span.failed:
                traces.setdefault((name, span.trace_id), []).append(span)
    left_out = f"{failed} calls that failed left out" if failed else None
    return [_trace(name, spans) for (name, _), spans in traces.items()], digest.hexdigest(), left_out


def _trace(name: str, spans: list[_Span]) -> Job:
    """Return the calls of a trace by their times."""
    spans.sort(key=lambda span: (span.start_time, span.span_id))
    calls: list[Call] = []
    ancestors: list[set[int]] = []
    answered: dict[object, list[int]] = {}
    for place, span in enumerate(spans):
        try:
            messages = [it for raw in span.value("gen_ai.input.messages") for it in _messages(raw)]
            answer = _answer(span)
            tools = tuple(_tool(raw) for raw in span.value("gen_ai.tool.definitions") or ())
            tokens = span.value("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
            output = None if tokens is None else max(1, int(tokens))
        except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError) as error:
            raise UsageError(
                f"{name}: the span {span.span_id!r} is malformed: {error!r}", OTEL_HINT
            ) from None
        ended = [i for i in range(place) if spans[i].end_time <= span.start_time]
        quoted = [
            (position, next(i for i in reversed(answered[key]) if i in ended))
            for position, message in enumerate(messages)
            if message["role"] == "assistant" and {*answered.get(key := _key(message), ())} & {*ended}
        ]
        needs = {call for _, call in quoted} | {*ended[-1:]}
        earlier = set[int]().union(*(ancestors[i] for i in needs))
        ancestors.append(earlier | needs)
        after = tuple(sorted(needs - earlier))
        ready = max((spans[i].end_time for i in after), default=spans[0].start_time)
        think_s = (span.start_time - ready).total_seconds()
        if answer is not None:
            answered.setdefault(_key(answer), []).append(place)
        text = None if answer is None else message_text(answer)
        calls.append(Call(tuple(messages), text, output, after, think_s, tuple(quoted), tools))
    return Job(tuple(calls))


def _key(message: Json) -> object:
    """Return that by which an answer is found among messages."""
    calls = message.get("tool_calls")
    return frozenset(call["id"] for call in calls) if calls else message["content"]


def _answer(span: _Span) -> Json | None:
    if (messages := span.value("gen_ai.output.messages")) is not None:
        return next((it for raw in messages for it in _messages({"role": "assistant"} | raw)), None)
    text = span.value("gen_ai.output.text", "gen_ai.completion", "gen_ai.output")
    return None if text is None else {"role": "assistant", "content": str(text)}


def _messages(raw: dict[str, Any]) -> list[Json]:
    """Return a message as requests have it: several, where it has the results of several tools."""
    role = "system" if raw["role"] == "developer" else raw["role"]
    content = raw.get("parts", raw.get("content"))
    parts = content if isinstance(content, list) else [{"type": "text", "content": content}]
    text = "\n".join(part.get("content", part.get("text")) or "" for part in parts if part["type"] == "text")
    results = [part for part in parts if part["type"] == "tool_call_response"]
    if results:
        answers = ((it.get("id") or "", it.get("result", it.get("response", ""))) for it in results)
        return [
            {"role": "tool", "content": it if isinstance(it, str) else _json(it), "tool_call_id": number}
            for number, it in answers
        ]
    message: dict[str, Any] = {"role": role, "content": text}
    called = [part for part in parts if part["type"] == "tool_call"] or raw.get("tool_calls") or ()
    if called:
        message["tool_calls"] = [_tool_call(call) for call in called]
    if raw.get("tool_call_id"):
        message["tool_call_id"] = raw["tool_call_id"]
    return [message]


def _tool_call(raw: dict[str, Any]) -> Json:
    function = raw.get("function") or raw
    arguments = function.get("arguments") or ""
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return {"id": raw["id"], "type": "function", "function": {"name": function["name"], "arguments": text}}


def _tool(raw: dict[str, Any]) -> Json:
    if "function" in raw:
        return raw
    return {"type": "function", "function": {name: it for name, it in raw.items() if name != "type"}}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- Files -----------------------------------------------------------------------------------------------


def _files(place: Path, pattern: str, hint: str, inside: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield a file, those of a folder, or of a wheel those in its folder `inside`, in the order of names."""
    try:
        if place.is_dir():
            yield from ((str(file), file.read_bytes()) for file in sorted(place.glob(pattern)))
        elif inside and zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as wheel:
                names = (name for name in sorted(wheel.namelist()) if f"/{inside}/" in name)
                yield from ((f"{place}, {name}", wheel.read(name)) for name in names)
        else:
            yield str(place), place.read_bytes()
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{place} cannot be read: {reason}", hint) from None


def _decoded(decoder: msgspec.json.Decoder[Content], raw: bytes, place: str, hint: str) -> Content:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{place}: {error}", hint) from None


def decoded_lines(
    lines: Iterable[bytes], kind: type[Content], file: object, hint: str
) -> Iterator[tuple[str, Content]]:
    """Yield what each line of JSON holds, with its place; empty lines count. Raises UsageError."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{file}, line {number}"
            yield place, _decoded(decoder, line, place, hint)


def find_file(name: str) -> Path | None:
    """Return the first file of that name where datasets are searched; None: there is none."""
    fetched = (paths.cache_folder() / kind for kind in ("datasets", "traces"))
    return next(paths.copies(name, "BENCH_DATASETS", *fetched, paths.DATA / "datasets"), None)


#: Hint on what such files are, and reader of a place, by the word before the colon.
HINTS = {"agentperf": AGENTPERF_HINT, "otel": OTEL_HINT}
READERS: dict[str, Callable[[Path], tuple[list[Job], str, str | None]]] = {
    "agentperf": read_agentperf,
    "otel": read_otel,
}
