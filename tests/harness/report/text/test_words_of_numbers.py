"""Numbers, limits, traces, settings and the making of a run as a reader sees them."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.fairness.ledger import ledger
from harness.report.render import markdown
from harness.report.tables.fairness import ledger_table, side_by_side, sources
from harness.report.tables.latency import latency_table
from harness.report.text.heading import about, names, title_parts
from harness.report.text.numbers import number, two_digits, with_ends
from harness.report.text.provenance import client, hardware, ready, trace_facts
from harness.report.wording import limit_words
from harness.runs.reader import load_run
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord, RunInfo


@pytest.mark.parametrize(
    ("value", "places"), [(535, 0), (10, 0), (9.96, 0), (7.01, 1), (1, 1), (0.997, 1), (0.24, 2), (0.011, 3)]
)
def test_a_small_number_has_two_digits(value, places):
    assert two_digits(value) == places
    assert len(f"{value:.{places}f}".replace(".", "").lstrip("0")) >= 2


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.01, "0.0"), (-0.06, "-0.1"), (-1234.5, "-1,234.5"), (0, "0.0")]
)
def test_what_rounds_to_zero_has_no_sign(value, shown):
    assert number(value, 1) == shown


@pytest.mark.parametrize(("ratio", "ends", "shown"), [
    (1.002, (0.999, 1.004), ["1.002", "0.999", "1.004"]),
    (1.0, (0.93, 1.08), ["1.00", "0.93", "1.08"]),
    (1.02, (0.9997, 1.05), ["1.0200", "0.9997", "1.0500"]),
    (1.02, (0.999999, 1.05), ["1.0200", "1.0000", "1.0500"]),
    (0.97, (0.94, 1.0), ["0.97", "0.94", "1.00"]),
    (1.0, (1.0, 1.0), ["1.00", "1.00", "1.00"]),
])  # fmt: skip
def test_the_ends_of_a_ratio_read_as_one_only_where_they_are(ratio, ends, shown):
    assert with_ends(ratio, ends) == shown


def test_beside_a_much_slower_engine_a_value_and_its_interval_keep_two_digits(run):
    """7.01 ms of one and 535 ms of another, in one column."""
    fast, slow = run.pooled[0], run.pooled[-1]
    load, ttft = fast.load, fast.ttft_ms
    cells = [
        fast.model_copy(
            update={"ttft_ms": ttft.model_copy(update={"p50": 7.01, "ci": {"p50": (6.93, 7.12)}})}
        ),
        slow.model_copy(
            update={"ttft_ms": ttft.model_copy(update={"p50": 535.0, "ci": {"p50": (118, 821)}})}
        ),
    ]
    cells = [cell.model_copy(update={"load": load}) for cell in cells]
    column = [row[1] for row in latency_table(cells, "ttft_ms", {}).rows]
    assert [(cell.text, cell.interval) for cell in column] == [("7.0", "6.9–7.1"), ("535", "118–821")]


def test_of_many_engines_the_title_names_the_first():
    assert names(["a", "b", "a"]) == ["a", "b"] and names([]) == []
    assert names("abcdef") == list("abcdef") and names("abcdefg") == ["a", "6 others"]


def test_limits_read_as_sentences_do():
    said = limit_words("ttft_p99<=1s,tpot_p99<=30ms,output_tok_per_s>=500,error_rate<=1%")
    assert said == "TTFT p99 ≤ 1 s, TPOT p99 ≤ 30 ms, output tok/s ≥ 500 and failed requests ≤ 1 %"


def test_a_generated_trace_says_so_in_the_first_line(small):
    note = "generated, not recorded: 8 a second"
    trace = small.meta.trace.model_copy(update={"name": "builtin", "note": note})
    results = small.results.model_copy(update={"meta": small.meta.model_copy(update={"trace": trace})})
    assert " · builtin trace, generated · " in about(replace(small, results=results))


SERVED = {"dtype": "bfloat16", "quantization": "fp8"}
PLAIN = {"dtype": "bfloat16", "quantization": "none"}


@pytest.mark.parametrize(
    ("models", "facts", "named", "type_named"),
    [
        ("xx", [SERVED, SERVED], "x, bfloat16, fp8 at http://a and http://b", "x bfloat16 fp8"),
        ("xx", [SERVED, PLAIN], "x, bfloat16 at http://a and http://b", "x bfloat16"),
        ("xx", [SERVED, {}], "x at http://a and http://b", "x"),
        ("xy", [SERVED, SERVED], "A: x at http://a and B: y at http://b", None),
    ],
)  # fmt: skip
def test_servers_of_one_model_are_named_by_it_and_by_what_all_compute_in(
    small, models: str, facts: list[dict[str, str]], named: str, type_named: str | None
) -> None:
    launches = [
        LaunchRecord(
            engine="openai",
            label=label.upper(),
            settings={"model": model, "base_url": f"http://{label}"},
            facts={key: EngineFact(value=value, source="a page") for key, value in values.items()},
        )
        for label, model, values in zip("ab", models, facts, strict=True)
    ]
    results = small.results.model_copy(update={"meta": small.meta.model_copy(update={"launches": launches})})
    run = replace(small, results=results)
    assert about(run).startswith(f"{named} · ") and title_parts(run)[0] == (
        [type_named] if type_named else []
    )


# --- How a run was made ----------------------------------------------------------------------------------

REPORTS = Path(__file__).parents[4] / "reports"


@pytest.fixture(scope="module")
def meta() -> RunInfo:
    return load_run(REPORTS / "h100-gpt2", trust=True).meta


def test_memory_is_in_gib_also_that_of_a_gpu(meta: RunInfo) -> None:
    shown = dict(hardware(meta.environment))
    assert (shown["memory total"], shown["gpus.0.memory total"]) == ("251.8 GiB", "79.6 GiB")
    assert shown["gpus.0.memory clock mhz"] == "2619"
    assert dict(hardware({"memory_total": "unknown"})) == {"memory total": "unknown"}


def test_counts_of_a_trace_have_commas(meta: RunInfo) -> None:
    assert meta.trace is not None
    shown = dict(trace_facts(meta.trace))
    assert (shown["input tokens"], shown["requests"], shown["dropped"]) == ("410,491", "637", "0")


def test_timing_errors_say_of_how_many_processes_and_have_no_negative_zero(meta: RunInfo) -> None:
    rows = client(meta.environment)
    names = [name for name, _ in rows]
    assert len(set(names)) == len(names)
    assert "timing error p50 / p99, 8 in flight by 1 client process" in names
    assert not any("-0.00" in text for _, text in rows)


# --- The settings ledger ---------------------------------------------------------------------------------

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
    assert sources(ledger(LAUNCHES)) == [
        "roseinfer: GET /server_info for KV cache (tokens), CUDA graphs (batch sizes).",
        "vLLM: start-up log for KV cache (tokens), attention backend.",
        "transformers: it reports nothing.",
    ]
    assert "| KV cache (tokens) | 4,096 | 262,144 | unknown | differs |" in markdown(found)
    assert "<FLASH>" not in markdown(found), "Markdown has no markup from outside"


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


def test_an_engine_that_was_started_and_never_measured_has_a_column() -> None:
    """Versions and commands stand in the same columns, of every engine that was started."""
    found = side_by_side(LAUNCHES, ledger([LAUNCHES[0], LAUNCHES[2]]))
    assert found[0] == ("KV cache (tokens)", ["4,096", "–", "–"], False)
