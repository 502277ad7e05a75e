"""What to do about a server that answers no request of a warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By the kind of error of `harness.records.request_record`.
_HINTS = {
    "http_400": "change the setting that the server names; its context may be shorter than --max-model-len",
    "http_404": "check --endpoint and --served-model",
    "http_422": "the server refuses a field of the request: see its log",
    "http_429": "the server limits how much it is asked: lower the load, or --warmup 0",
    "wrong_length": "the server ends answers on its own: add --no-ignore-eos",
    "only_reasoning": "raise --output-len, with a trace or a dataset --max-output-len, so that an answer "
    "follows the reasoning",
    "prompt_mismatch": "the server's tokenizer is another one: name it with --tokenizer, or --tokenizer none",
    "no_usage": "the server must send `usage` at the end of the stream (stream_options.include_usage), or "
    "`token_ids` in every chunk",
    "truncated": "the server must end a stream with a finish_reason, or, with --ignore-eos, `data: [DONE]`",
}
_STARTED = "check --endpoint, and that `served_name` in the engine's adapter is the name of its model"
_TOO_LONG = "the server gives, or counts, more tokens than the request's max_tokens"
_ELSE = "see the engine's log, which is in the run's folder if it was started here"
#: Those that name settings, which a run that has begun keeps.
_OF_SETTINGS = {"http_404", "http_429", "wrong_length", "only_reasoning", "prompt_mismatch"}


def warmup_hint(failed: Mapping[Any, Any], started: bool) -> tuple[str, bool]:
    """The hint for a failed request, and whether it changes settings.

    Args:
        failed: Its row of `requests.parquet`.
        started: Whether its server was started here.
    """
    error = str(failed["error"])
    if error == "wrong_length" and failed["completion_tokens"] > failed["output_tokens"]:
        return _TOO_LONG, False
    hint = _STARTED if started and error == "http_404" else _HINTS.get(error, _ELSE)
    return hint, error in _OF_SETTINGS
