"""Sessions with live answers, once these are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.lazy_sequence import LazySequence
from harness.loadgen.live_answers import fill_text
from harness.models.text_tokens import load_tokenizer
from harness.workload.dataset_content import encode
from harness.workload.planned_requests import Message, PlannedRequest


def answered(requests: Sequence[PlannedRequest]) -> list[int]:
    """The requests whose answers go into others; a workload that is too long to be held has none."""
    if isinstance(requests, LazySequence):
        return []
    return sorted({index for request in requests for index in request.answers})


def with_answers(
    requests: Sequence[PlannedRequest], known: Mapping[int, str], tokenizer: Path | None
) -> Sequence[PlannedRequest]:
    """The requests as they were sent: markers replaced by the texts of the answers that came, by request,
    token ids by the tokenizer in that folder, where it is known."""
    if not answered(requests):
        return requests
    encoding = None if tokenizer is None else load_tokenizer(tokenizer)

    def filled(request: PlannedRequest) -> PlannedRequest:
        if not request.answers or request.text is None or request.messages is None:
            return request
        text = fill_text(request.text, known)
        messages = tuple(
            Message(role=m["role"], content=fill_text(m["content"], known)) for m in request.messages
        )
        return replace(request, prompt=encode(encoding, text), text=text, messages=messages)

    return [filled(request) for request in requests]
