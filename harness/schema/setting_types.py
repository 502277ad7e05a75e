"""Types of single settings, as the command line and YAML write them: `gamma:2`, `1:8:60`, `NAME=VALUE`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, PlainSerializer, model_validator

from harness.files import read_limited
from harness.plain_text import holds_secret
from harness.schema.base import Strict, each_once, listed, split
from harness.schema.load import Stage

#: The registry has the names: installed packages add engines.
EngineName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
_REFERENCE = re.compile(r"^(?P<name>[a-z][a-z0-9_-]*)(@(?P<variant>[A-Za-z0-9][A-Za-z0-9._-]*))?$")
#: The engine that is a server somebody else started.
RUNNING_SERVER: EngineName = "openai"
#: Engines by default where installed ones are not looked for, or none is.
DEFAULT_ENGINES: tuple[EngineName, ...] = ("roseinfer", "vllm")


def asks_auto(engines: object) -> bool:
    """Return whether `engines` leaves the choice to the machine, as if none had been named."""
    return engines == ["auto"] or (isinstance(engines, str) and engines.strip() == "auto")


def _engines(value: object) -> object:
    """`listed`, where `auto` is no engine among others."""
    names = listed(value)
    if isinstance(names, list) and "auto" in names:
        raise ValueError(
            "auto stands alone: it means roseinfer and every other engine that is installed; "
            "give only auto, or the engines by name"
        )
    return names


def _is_empty(value: object) -> bool:
    return not value


def _share(value: object) -> object:
    """Take `10%` for 0.1."""
    return float(value.strip()[:-1]) / 100 if isinstance(value, str) and value.strip()[-1:] == "%" else value


#: A relative difference: `10%` or 0.1.
Share = Annotated[float, BeforeValidator(_share), Field(gt=0, le=10)]


#: A part of all: `5%` or 0.05.
Part = Annotated[float, BeforeValidator(_share), Field(ge=0, lt=1)]


class EngineRef(Strict):
    """An engine and one of its variants: `NAME` or `NAME@VARIANT`.

    With arguments or an environment, `variant` is the name of settings that are laid over `base` here.
    """

    name: EngineName
    variant: str | None = None
    base: str | None = Field(None, description="variant below `args` and `env`", exclude_if=_is_empty)
    args: list[str] = Field([], description="of the server", exclude_if=_is_empty)
    env: dict[str, str] = Field({}, description="of the server", exclude_if=_is_empty)

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if isinstance(value, dict | EngineRef):
            return value
        if not isinstance(value, str):
            raise ValueError("must be NAME or NAME@VARIANT")
        match = _REFERENCE.match(value)
        if match is None:
            raise ValueError(
                f"{value!r} is not NAME or NAME@VARIANT; names are in small letters, such as vllm"
            )
        return {"name": match["name"], "variant": match["variant"]}

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.is_inline and self.variant is None:
            raise ValueError(f"the settings of {self.name} have no name: give them as its variant")
        return self

    @property
    def is_inline(self) -> bool:
        """True if the variant is defined here, and not in a file."""
        return bool(self.args or self.env or self.base)

    def __str__(self) -> str:
        return f"{self.name}@{self.variant}" if self.variant else self.name


Engines = Annotated[
    list[EngineRef], BeforeValidator(_engines), AfterValidator(each_once), Field(min_length=1)
]


class _Written(Strict):
    """A model that is also written as `PART:PART`; FORM says how, for errors."""

    FORM: ClassVar[str]
    SEPARATOR: ClassVar[str] = ":"

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        if isinstance(value, dict | cls):
            return value
        if not isinstance(value, str):
            raise ValueError(f"must be {cls.FORM}")
        parts = [part.strip() for part in value.split(cls.SEPARATOR)]
        if (fields := cls.fields_of(parts)) is None:
            raise ValueError(f"{value!r} is not {cls.FORM}")
        return fields

    @classmethod
    def fields_of(cls, parts: list[str]) -> dict[str, str] | None:
        """Return the fields that the parts give; None if they have another form."""
        names = list(cls.model_fields)
        return dict(zip(names, parts, strict=True)) if len(parts) == len(names) else None


class ArrivalProcess(_Written):
    """Distribution of the times between arrivals: `poisson`, `constant`, or `gamma:CV`."""

    FORM = "poisson, constant or gamma:CV"

    kind: Literal["poisson", "gamma", "constant"]
    cv: float | None = Field(None, gt=0, le=100, description="coefficient of variation, with gamma")

    @classmethod
    def fields_of(cls, parts: list[str]) -> dict[str, str] | None:
        return dict(zip(cls.model_fields, parts, strict=False)) if len(parts) <= 2 else None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.kind == "gamma") != (self.cv is not None):
            raise ValueError(f"{self} is not {self.FORM}")
        return self

    def __str__(self) -> str:
        return self.kind if self.cv is None else f"{self.kind}:{self.cv:g}"


class RampSetting(_Written):
    """A request rate that moves evenly: `FROM:TO:SECONDS`."""

    FORM = "FROM:TO:SECONDS, two rates in requests/s and a time"

    from_req_per_s: float = Field(gt=0, allow_inf_nan=False)
    to_req_per_s: float = Field(gt=0, allow_inf_nan=False)
    seconds: float = Field(gt=0, allow_inf_nan=False)

    def __str__(self) -> str:
        return f"{self.from_req_per_s:g}:{self.to_req_per_s:g}:{self.seconds:g}"


def _stages(value: object) -> object:
    """Return the stages of `RATE:SECONDS,…`, or of a file with one a line, as `RATE,SECONDS` too."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = ",".join(value)
    if not isinstance(value, str):
        return value
    texts = split(value)
    if not all(_STAGE.match(text) for text in texts):
        try:
            texts = [line.strip() for line in read_limited(Path(value), _MAX_SERIES).decode().splitlines()]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ValueError(f"{value!r} is neither RATE:SECONDS,… nor a file of such lines: {why}") from None
        texts = [text for text in texts if text and not text.startswith("#")]
    stages = []
    for number, text in enumerate(texts, 1):
        if (match := _STAGE.match(text)) is None:
            raise ValueError(f"stage {number}, {text!r}, is not RATE:SECONDS")
        stages.append({"req_per_s": match[1], "seconds": match[2]})
    return stages


def _sends(stages: list[Stage]) -> list[Stage]:
    if not any(stage.req_per_s for stage in stages):
        raise ValueError("one of the rates must be above 0")
    return stages


_NUMBER = r"[0-9.]+(?:[eE][+-]?[0-9]+)?"
_STAGE = re.compile(rf"^\s*({_NUMBER})\s*[:,;\s]\s*({_NUMBER})\s*$")
#: Bytes of a file of stages.
_MAX_SERIES = 1 << 20
#: Request rates one after the other: `10:60,50:10,10:60`, or a file of such lines.
Series = Annotated[list[Stage], BeforeValidator(_stages), AfterValidator(_sends), Field(min_length=1)]


class Uniform(_Written):
    """Whole numbers of tokens, each as likely as any other: `uniform:LEAST:MOST`."""

    FORM = "a number of tokens, or uniform:LEAST:MOST"

    kind: Literal["uniform"] = "uniform"
    least: int = Field(ge=1)
    most: int = Field(ge=1)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.most < self.least:
            raise ValueError(f"{self.most} tokens are fewer than {self.least}")
        return self

    def __str__(self) -> str:
        return f"uniform:{self.least}:{self.most}"


class SharedPrefixes(Strict):
    """Groups of prompts that begin alike: `groups=8,share=60%`, with `zipf` and `depth` where wanted."""

    groups: int = Field(ge=1, le=100_000, description="groups of prompts")
    share: Part = Field(
        description="of all prompt tokens, those that a prompt before had: what an unbounded cache can have"
    )
    zipf: float = Field(0.0, ge=0, le=10, description="group k has a weight of k^-zipf; 0: all alike")
    depth: int = Field(1, ge=1, le=8, description="levels of a tree: groups share the upper ones")

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: object) -> object:
        return dict(map(_pair, split(value))) if isinstance(value, str) else value

    @property
    def text(self) -> str:
        """The groups in words."""
        drawn = f", by Zipf with {self.zipf:g}" if self.zipf else ""
        deep = f", {self.depth} levels deep" if self.depth > 1 else ""
        return f"of {self.groups:,} groups that share {100 * self.share:g} % of the tokens{drawn}{deep}"


#: Requests of a cell at most; their times alone take 80 MB.
MAX_REQUESTS = 10**7

_LISTED = (BeforeValidator(listed), AfterValidator(each_once), Field(min_length=1))
Scales = Annotated[list[Annotated[float, Field(gt=0)]], *_LISTED]
Concurrency = Annotated[list[Annotated[int, Field(ge=1)]], *_LISTED]
Rates = Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], *_LISTED]
#: Tokens of a prompt or an answer: the same for all, or drawn for each.
Lengths = Annotated[int, Field(ge=1)] | Uniform


def lengths_text(lengths: int | Uniform) -> str:
    """`64`, or `100 to 1,024`."""
    return f"{lengths:,}" if isinstance(lengths, int) else f"{lengths.least:,} to {lengths.most:,}"


def most(lengths: int | Uniform) -> int:
    """Return the most tokens that are drawn."""
    return lengths if isinstance(lengths, int) else lengths.most


class Window(_Written):
    """A part of a cell, in seconds since its first scheduled arrival: `START,END`."""

    FORM = "START,END in seconds"
    SEPARATOR = ","

    start_s: float = Field(ge=0)
    end_s: float = Field(ge=0)

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end_s < self.start_s:
            raise ValueError(f"{self.end_s:g} s is before {self.start_s:g} s")
        return self


def _by_name(
    form: str, read: Callable[[str], tuple[str, str]], parts: Callable[[str], list[str]] = split
) -> BeforeValidator:
    """Accept text, or a list of texts, for a mapping.

    Args:
        form: The form of the text, for errors.
        read: Returns the name and the value of a part.
        parts: Returns the parts of a text.
    """

    def parse(value: object) -> object:
        if isinstance(value, dict):
            return value
        texts = parts(value) if isinstance(value, str) else value
        if not isinstance(texts, list):
            raise ValueError(f"must be {form}")
        pairs = [read(str(text)) for text in texts]
        each_once([name for name, _ in pairs])
        return dict(pairs)

    return BeforeValidator(parse)


def _weight(part: str) -> tuple[str, str]:
    """Return a name, which may have colons, and its weight or amount; a name alone has 1."""
    name, colon, weight = part.rpartition(":")
    return (name, weight) if colon else (part, "1")


def _pair(text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    name, _, content = (part.strip() for part in text.partition("="))
    if not name or not content:
        raise ValueError(f"{text!r} is not like {form}")
    return name, content


def _server(text: str) -> tuple[str, str]:
    return _pair(text, "LABEL=URL; without a label it is --base-url")


def _some(weights: dict[str, float]) -> dict[str, float]:
    if any(weight < 0 for weight in weights.values()) or (weights and not sum(weights.values())):
        raise ValueError("weights are at least 0, and one of them is above 0")
    return weights


#: Amount of each of Ray's resources: `NAME:AMOUNT,…`.
Resources = Annotated[dict[str, Annotated[float, Field(gt=0)]], _by_name("NAME:AMOUNT,…", _weight)]
#: Weight of each adapter by its name in requests: `NAME:WEIGHT,…`.
Adapters = Annotated[dict[str, float], _by_name("NAME:WEIGHT,…", _weight), AfterValidator(_some)]

#: Shown and stored in place of a header's value that was given as it is.
HIDDEN = "(hidden)"
#: Begins a header's value that is the name of an environment variable.
FROM_ENV = "env:"

_LABEL = re.compile(r"^[^\s=,][^=,]{0,59}$")
_HEADER = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
_Pairs = _by_name("NAME=VALUE, or a list of them", _pair, lambda text: [text])


def _labels(servers: dict[str, str]) -> dict[str, str]:
    for label in servers:
        if not _LABEL.match(label) or not label.isprintable():
            raise ValueError(f"{label!r} is no label: at most 60 characters, without `=` and `,`")
    return servers


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Raise ValueError without repeating a value, which may be a secret."""
    for name, value in headers.items():
        if not _HEADER.match(name):
            raise ValueError(f"{name!r} is not the name of a header")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"{name} is part of each request already")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {name} has a character that HTTP does not allow")
    return headers


def _text_values(headers: object) -> object:
    """Raise ValueError without repeating a value, which may be a secret."""
    if isinstance(headers, dict):
        for name, value in headers.items():
            if not isinstance(value, str):
                raise ValueError(f"the value of {name} must be text")
    return headers


def _hide(headers: dict[str, str]) -> dict[str, str]:
    """Return what is stored: the name of an environment variable, never a value."""
    return {name: value if value.startswith(FROM_ENV) else HIDDEN for name, value in headers.items()}


_Servers = _by_name("LABEL=URL, or a list of them", _server, lambda text: [text])
#: Addresses by label: `LABEL=URL`, as often as there are servers.
Servers = Annotated[dict[str, str], _Servers, AfterValidator(_labels)]
#: Values by the header's name. A value that is no `env:VARIABLE` is not stored.
Headers = Annotated[
    dict[str, str], AfterValidator(_headers), PlainSerializer(_hide), BeforeValidator(_text_values), _Pairs
]


#: Fields of a request that other options write, or that bench needs.
_WRITTEN = {
    "model": "use --served-model",
    **dict.fromkeys(("prompt", "messages", "input"), "use --dataset, --input-len or --trace"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), "use --output-len"),
    "ignore_eos": "use --no-ignore-eos",
    "response_format": "use --response-format",
    **dict.fromkeys(("stream", "n", "best_of"), "each request has one answer, which is streamed"),
}
#: Fields of sampling that some engine knows; the others need a temperature above 0.
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", *_PENALTIES)


def _read_body(value: object) -> object:
    """Read a JSON object, or the file of one."""
    if not isinstance(value, str):
        return value
    text = value
    try:
        if not value.lstrip().startswith("{"):
            text = Path(value).expanduser().read_text()
        return json.loads(text)
    except OSError as error:
        raise ValueError(f"{value} is neither JSON like {{…}} nor a file: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _check_body(body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Raise ValueError for a field that bench writes itself, and for a secret, without repeating it."""
    for name in body.keys() & _WRITTEN.keys():
        raise ValueError(f"{name} is not a field to give here: {_WRITTEN[name]}")
    for name, value in _texts(body):
        if holds_secret(name) and not value.startswith(FROM_ENV):
            raise ValueError(f"{name} would stand in the run's files: give env:VARIABLE as its value")
    return body


def _texts(value: JsonValue, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a JSON value with the name of its field."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, name)


def _check_sampling(sampling: dict[str, float]) -> dict[str, float]:
    for name in sampling:
        if name not in SAMPLING:
            raise ValueError(f"{name} is none of {', '.join(SAMPLING)}; other fields go into --body")
    return {name: int(value) if value.is_integer() else value for name, value in sampling.items()}


#: Fields of every request, as JSON or the name of a file with it.
Body = Annotated[dict[str, JsonValue], BeforeValidator(_read_body), AfterValidator(_check_body)]
#: Fields of sampling: `temperature=0.7,top_p=0.95`.
Sampling = Annotated[dict[str, float], _by_name("NAME=VALUE,…", _pair), AfterValidator(_check_sampling)]


def draws_tokens(fields: Mapping[str, object]) -> bool:
    """Return whether tokens of a request with these fields are drawn at random: its temperature is not 0, or
    left to the server."""
    return fields.get("temperature", 0) != 0


HeaderName = Annotated[str, AfterValidator(lambda name: next(iter(_headers({name: ""}))))]


def for_server(text: str | None, label: str, labels: Iterable[str]) -> str | None:
    """Return the part of `VALUE`, for every server, or `LABEL=VALUE,…` for the server of that label."""
    if text is None:
        return None
    named = _named(text)
    return named.get(label) if named.keys() & set(labels) else text


def check_for_servers(option: str, text: str | None, labels: Iterable[str]) -> None:
    """Raise ValueError if a part of `LABEL=VALUE,…` has another form, or a label of no server."""
    names = set(labels)
    if text is None or not _named(text).keys() & names:
        return
    for part in text.split(","):
        label, equals, value = part.partition("=")
        if not equals or not value.strip() or label.strip() not in names:
            raise ValueError(
                f"{option}: {part.strip()!r} in {text!r} must be LABEL=VALUE with a label of --server"
            )


def _named(text: str) -> dict[str, str]:
    """Return the values of `LABEL=VALUE,…` by label."""
    named = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    return {name.strip(): value.strip() for name, value in named.items()}
