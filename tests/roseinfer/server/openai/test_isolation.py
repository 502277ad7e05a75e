"""An answer does not depend on the requests of others at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.roseinfer.conftest import TEXT_VOCAB

PROMPTS = st.lists(st.integers(0, TEXT_VOCAB - 1), min_size=1, max_size=40) | st.text(min_size=1, max_size=60)
REQUESTS = st.fixed_dictionaries(
    {"prompt": PROMPTS, "max_tokens": st.integers(1, 8), "stream": st.booleans()},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 5.0]),
        "top_k": st.integers(0, 40),
        "top_p": st.sampled_from([0.1, 0.9, 1.0]),
        "n": st.integers(1, 3),
        "stop": st.text(min_size=1, max_size=2) | st.lists(st.text("aeiou ", min_size=1), max_size=3),
        "ignore_eos": st.booleans(),
    },
)


def answer(server: Any, request: dict[str, Any]) -> list[tuple[list[int], str, str]]:
    """Return the tokens, the text and the finish reason of each choice."""
    reply = server.request("/v1/completions", request | {"seed": 7, "return_token_ids": True})
    assert reply.status == 200, reply.body
    reasons = {choice["index"]: choice["finish_reason"] for choice in reply.choices}
    return [(reply.tokens(index), reply.text(index), reasons[index]) for index in range(len(reasons))]


@settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(REQUESTS, min_size=2, max_size=6))
def test_together_as_alone(serving: Any, requests: list[dict[str, Any]]) -> None:
    alone = [answer(serving, request) for request in requests]
    assert all(len(choices) == request.get("n", 1) for choices, request in zip(alone, requests, strict=True))
    with ThreadPoolExecutor(len(requests)) as pool:
        assert list(pool.map(lambda request: answer(serving, request), requests)) == alone
