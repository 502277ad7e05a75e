"""What a report says of the requests that an engine was sent."""

from __future__ import annotations

from harness.engines.base import RequestSettings
from harness.schema.fairness import EngineFact

_SENT, _FOUND = "requests", "found by asking"


def request_facts(wanted: RequestSettings, asked: RequestSettings) -> dict[str, EngineFact]:
    """How requests are written, by the keys of `harness.fairness.ledger.SETTINGS`.

    Args:
        wanted: As they were to be.
        asked: As the server takes them.
    """
    facts = {
        "endpoint": EngineFact(value=asked.endpoint, source=_SENT),
        "prompts": EngineFact(value=_prompts(asked), source=_SENT if asked == wanted else _FOUND),
        "answers": EngineFact(
            value=end_of_answers(asked.ignore_eos),
            source=_SENT if asked.ignore_eos == wanted.ignore_eos else _FOUND,
        ),
    }
    refused = sorted(asked.left_out - wanted.left_out)
    if asked.limit_field != wanted.limit_field:
        refused.append(wanted.limit_field)
    if refused:
        facts["refused"] = EngineFact(value=", ".join(refused), source=_FOUND)
    return facts


def end_of_answers(ignore_eos: bool) -> str:
    """Where answers end, by whether the model's own end is ignored."""
    return "at the length asked for" if ignore_eos else "on their own"


def _prompts(asked: RequestSettings) -> str:
    if asked.endpoint == "completions" and not asked.text:
        return "token ids"
    form = "chat" if asked.endpoint == "chat" else "text"
    if not asked.lengths.exact:
        return f"{form}, of a length that the server's usage tells"
    if asked.tokenizer is None:
        shortest = asked.lengths.tokens(1)  # a chat's template cannot be left out
        least = f", at least {shortest} tokens" if shortest > 1 else ""
        return f"{form}, counted by the server{least}"
    offset = asked.lengths.offset
    other = f", where the server counts {offset:+d} tokens" if offset else ""
    return f"{form}, counted by the tokenizer{other}"
