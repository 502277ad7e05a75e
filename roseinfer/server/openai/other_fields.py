"""Fields of OpenAI's and vLLM's requests that are not implemented: accepted if they change nothing."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from roseinfer.server.http.errors import BadRequestError

#: Fields on which an answer's tokens do not depend.
ACCEPTED = (
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "request_id",
    "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip
#: Fields on which they would depend, with the values, besides null, that ask for what is done anyway.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}

if TYPE_CHECKING:

    class OtherFields(msgspec.Struct, frozen=True, kw_only=True):
        """Has a field for each of these names; any other is refused."""

        tool_choice: Any = None

else:
    OtherFields = msgspec.defstruct(
        "OtherFields",
        [(name, Any, None) for name in (*ACCEPTED, *NEUTRAL)],
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


_neutral = attrgetter(*NEUTRAL)


def refuse_unsupported(request: msgspec.Struct) -> None:
    """Raise BadRequestError where one of these fields would change the answer to `request`."""
    given = _neutral(request)
    if given.count(None) == len(given):
        return
    for name, values in NEUTRAL.items():
        value = getattr(request, name)
        if value is not None and value not in values:
            raise BadRequestError(f"{name} is not supported", name, "unsupported_parameter")
