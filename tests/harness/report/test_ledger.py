"""The settings ledger as readers see it."""

from __future__ import annotations

import pytest

from harness.fairness.ledger import ledger
from harness.report.markdown import table
from harness.report.tables.fairness import ledger_table, side_by_side, sources
from harness.report.text.provenance import ready
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord

LOG, PAGE = "start-up log", "GET /server_info"
LAUNCHES = [
    LaunchRecord(
        engine="roseinfer",
        label="roseinfer",
        facts={"kv_tokens": EngineFact(value=4096, source=PAGE), "graphs": EngineFact(value=[], source=PAGE)},
    ),
    LaunchRecord(
        engine="vllm",
        label="vLLM",
        facts={
            "kv_tokens": EngineFact(value=262144, source=LOG),
            "attention": EngineFact(value="<FLASH>", source=LOG),
        },
    ),
    LaunchRecord(engine="transformers", label="transformers"),
]


def test_values_stand_side_by_side_with_their_sources_and_unknown_ones_say_so() -> None:
    found = ledger_table(ledger(LAUNCHES))
    assert found.headers == ["setting", "roseinfer", "vLLM", "transformers", ""]
    assert found.lines == [
        ["KV cache (tokens)", "4,096", "262,144", "unknown", "differs"],
        ["CUDA graphs (batch sizes)", "none", "unknown", "unknown", ""],
        ["attention backend", "unknown", "<FLASH>", "unknown", "own design"],
    ]
    assert [cell.remark for cell in found.rows[0]] == ["", PAGE, LOG, "", ""]


@pytest.mark.parametrize(
    ("first", "later", "said"),
    [
        (None, [], ""),
        (20.06, [], "20.1 s"),
        (20.06, [11.4, 11.02, 11.1], "20.1 s the first time, then 11.0 to 11.4 s"),
        (20.06, [11.02, 10.98], "20.1 s the first time, then 11.0 s"),
    ],
)
def test_the_first_start_and_later_ones_are_told_apart(
    first: float | None, later: list[float], said: str
) -> None:
    assert ready(LaunchRecord(engine="e", label="e", ready_s=first, later_ready_s=later)) == said


def test_each_engine_s_sources_are_named() -> None:
    assert sources(ledger(LAUNCHES)) == [
        "roseinfer: GET /server_info for KV cache (tokens), CUDA graphs (batch sizes).",
        "vLLM: start-up log for KV cache (tokens), attention backend.",
        "transformers: it reports nothing.",
    ]


def test_an_engine_that_was_started_and_never_measured_has_a_column() -> None:
    """Versions and commands stand in the same columns, of every engine that was started."""
    found = side_by_side(LAUNCHES, ledger([LAUNCHES[0], LAUNCHES[2]]))
    assert found[0] == ("KV cache (tokens)", ["4,096", "–", "–"], False)


def test_markdown_carries_the_ledger_without_markup_from_outside() -> None:
    text = table(ledger_table(ledger(LAUNCHES)))
    assert "| KV cache (tokens) | 4,096 | 262,144 | unknown | differs |" in text
    assert "<FLASH>" not in text
