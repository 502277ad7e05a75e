"""Numbers, limits and traces as a reader sees them."""

from dataclasses import replace

import pytest

from harness.report.tables.latency import first_table
from harness.report.text.heading import about, names
from harness.report.text.numbers import number, two_digits, with_ends
from harness.report.wording import limit_words


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
    column = [row[1] for row in first_table(cells, load, {}).rows]
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
    assert about(replace(small, results=results)).endswith(" · builtin trace, generated")
