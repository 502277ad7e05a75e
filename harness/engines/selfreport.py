"""Settings that a started server reports about itself, and the result of a trial of a running one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import JsonValue

from harness.engines.base import RequestSettings
from harness.plain_text import one_line
from harness.schema.fairness import EngineFact
from harness.schema.setting_types import SAMPLING

LOG = "start-up log"
ARGV = "command line"
ENV = "environment"
#: Threads of every OpenMP runtime, and of PyTorch.
OMP_THREADS = "OMP_NUM_THREADS"
#: Characters of a setting that is text.
MAX_TEXT = 1_000

#: What `shortened` makes of a long list; the group is how many it has.
SIZES = re.compile(r"(\d+) sizes from \d+ to \d+")

_DTYPES = {
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    **dict.fromkeys(("float", "fp32", "f32", "all f32"), "float32"),
    "bf16": "bfloat16",
}
_WORDS: dict[str, JsonValue] = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True)
class SelfReport:
    """The log until it was ready, the bodies of pages that answered 200 by path, the command line, and the
    variables added to the environment."""

    log: str = ""
    pages: Mapping[str, str] = field(default_factory=dict)
    argv: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def from_log(self, patterns: Mapping[str, str]) -> dict[str, EngineFact]:
        """Settings by patterns of lines in the log: the first group of the last match of each."""
        matches = {key: re.findall(pattern, self.log) for key, pattern in patterns.items()}
        return _facts({key: every[-1] for key, every in matches.items() if every}, LOG)

    def page(self, path: str) -> JsonValue:
        """The page's JSON; null if it did not answer, or not with JSON."""
        try:
            content: JsonValue = json.loads(self.pages.get(path, ""))
        except ValueError:
            return None
        return content

    def from_page(self, path: str, places: Mapping[str, str]) -> dict[str, EngineFact]:
        """Settings by their places in the page's JSON, such as `settings.kv_tokens`."""
        values = {key: value_at(self.page(path), place) for key, place in places.items()}
        reported = {key: value for key, value in values.items() if value is not None}
        return _facts(reported, f"GET {path.partition('?')[0]}")

    def from_env(self, variables: Mapping[str, str]) -> dict[str, EngineFact]:
        """Settings by the variables that they are set with."""
        return _facts({key: self.env[name] for key, name in variables.items() if name in self.env}, ENV)

    def from_argv(self, options: Mapping[str, str]) -> dict[str, EngineFact]:
        """Settings by the options on the command line, for an engine that does not report them."""
        words = [(word.partition("="), after) for word, after in pairwise([*self.argv, ""])]
        values = {name: value if equals else after for (name, equals, value), after in words}
        return _facts({key: values[option] for key, option in options.items() if option in values}, ARGV)


def _facts(values: Mapping[str, JsonValue], source: str) -> dict[str, EngineFact]:
    return {key: EngineFact(value=normalised(value), source=source) for key, value in values.items()}


def or_unquantized(facts: dict[str, EngineFact]) -> dict[str, EngineFact]:
    """Add that weights are not quantized, of a page that has the dtype and names no way."""
    if "dtype" not in facts:
        return facts
    return {"quantization": facts["dtype"].model_copy(update={"value": "none"})} | facts


def value_at(content: JsonValue, place: str) -> JsonValue:
    """Return the value at `a.b.c`; null if there is none."""
    for name in place.split("."):
        if not isinstance(content, dict):
            return None
        content = content.get(name)
    return content


def normalised(value: JsonValue) -> JsonValue:
    """Spell a value in one way: numbers as numbers, `torch.bfloat16` as `bfloat16`, `True` as true, and
    `fp8_per_tensor` as the `fp8` of which it is a kind."""
    if isinstance(value, list):
        return shortened(value)
    if not isinstance(value, str):
        return value
    text = one_line(value, MAX_TEXT).removeprefix("torch.")
    if re.fullmatch(r"-?\d[\d,]*", text):
        return int(text.replace(",", ""))
    if re.fullmatch(r"\[[\d, ]*\]", text):
        return shortened(json.loads(text))
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    text = _DTYPES.get(text.lower(), text)
    return "fp8" if text.startswith("fp8_per_") else text


def shortened(values: list[JsonValue]) -> JsonValue:
    """Write a long list of numbers as its range, because graphs are captured at many sizes."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) <= 8 or len(numbers) < len(values):
        return values
    return f"{len(numbers)} sizes from {min(numbers)} to {max(numbers)}"


_SENT, _FOUND = "requests", "found by asking"


def request_facts(requested: RequestSettings, accepted: RequestSettings) -> dict[str, EngineFact]:
    """State how requests are written, by the keys of `harness.fairness.ledger.SETTINGS`.

    Args:
        requested: As they were to be.
        accepted: As the server takes them.
    """
    facts = {
        "endpoint": EngineFact(value=accepted.endpoint, source=_SENT),
        "prompts": EngineFact(value=_prompts(accepted), source=_SENT if accepted == requested else _FOUND),
        "answers": EngineFact(
            value=end_of_answers(accepted.ignore_eos),
            source=_SENT if accepted.ignore_eos == requested.ignore_eos else _FOUND,
        ),
    }
    sent = {name: value for name, value in accepted.own_fields.items() if name not in accepted.left_out}
    drawn = ", ".join(f"{name} {value}" for name in SAMPLING if (value := sent.pop(name, None)) is not None)
    by_default = "the server's default" if accepted.is_sampled else "greedy"
    facts["sampling"] = EngineFact(value=drawn or by_default, source=_SENT)
    facts["body"] = EngineFact(value=json.dumps(sent, sort_keys=True) if sent else "none", source=_SENT)
    refused = sorted(accepted.left_out - requested.left_out)
    if accepted.limit_field != requested.limit_field:
        refused.append(requested.limit_field)
    if refused:
        facts["refused"] = EngineFact(value=", ".join(refused), source=_FOUND)
    return facts


def end_of_answers(ignore_eos: bool) -> str:
    """Say where answers end, by whether the model's own end is ignored."""
    return "at the length asked for" if ignore_eos else "on their own"


def _prompts(accepted: RequestSettings) -> str:
    if accepted.endpoint == "completions" and not accepted.text:
        return "token ids"
    form = "text" if accepted.endpoint == "completions" else "chat"
    if not accepted.lengths.exact:
        return f"{form}, of a length that the server's usage tells"
    if accepted.tokenizer is None:
        shortest = accepted.lengths.tokens(1)  # a chat's template cannot be left out
        least = f", at least {shortest} tokens" if shortest > 1 else ""
        return f"{form}, counted by the server{least}"
    offset = accepted.lengths.offset
    other = f", where the server counts {offset:+d} tokens" if offset else ""
    return f"{form}, counted by the tokenizer{other}"
