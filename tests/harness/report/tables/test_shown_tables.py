"""Tables of the report, and the same in text and CSV."""

import csv
import io
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.metrics.rankings import best_labels, shown_load
from harness.metrics.samples import split
from harness.records.columns import CHUNKS, REQUESTS
from harness.report.render import markdown, summary
from harness.report.results_csv import results_csv
from harness.report.tables.cells import lengths_table, turns_table
from harness.report.tables.latency import (
    headline_table,
    latency_table,
)
from harness.report.tables.rates import throughput_table
from harness.report.tables.saved_work import category_table
from harness.report.tables.table import MARKS, Cell, Column, Table
from harness.report.text.numbers import DASH
from harness.schema.load import ClosedLoop, load_text


def test_the_contract_s_form_of_a_latency_table(run):
    """Engine rows; for each scale p50, p90 and p99."""
    shown = latency_table(run.pooled, "ttft_ms", {})
    columns = [(column.group, column.title) for column in shown.columns[1:]]
    assert columns == [
        (scale, quantile)
        for scale in ("scale 0.4", "scale 0.8", "scale 1.6")
        for quantile in ("p50", "p90", "p99")
    ]
    assert [row[0].text for row in shown.rows] == [label for _, label in run.engines]


def test_a_percentile_without_an_interval_says_why(run, small):
    """Half of the cells lose that of p99, as those of requests that depend on each other."""
    why = "No interval: too few independent requests."
    sure = [
        s.model_copy(update={"tpot_ms": with_intervals(s.tpot_ms, ("p50", "p90", "p99"))}) for s in run.pooled
    ]
    unsure = [s.model_copy(update={"tpot_ms": with_intervals(s.tpot_ms, ("p50", "p90"))}) for s in sure[::2]]
    for found, said in ((sure, 0), ([*sure[1::2], *unsure], 1)):
        shown = latency_table(found, "tpot_ms", {})
        assert list(shown.notes).count(why) == said
        cells = [cell for row in shown.rows for cell in row[1:] if cell.value is not None]
        assert all(("no interval" in cell.remark) != bool(cell.interval) for cell in cells)


def test_a_mark_without_an_interval_says_what_it_rests_on(run, small):
    why = "No interval: too few independent requests. Marks compare repeats, which are independent."
    unsure = [s.model_copy(update={"tpot_ms": with_intervals(s.tpot_ms, ("p50", "p90"))}) for s in run.pooled]
    best = {(run.pooled[0].load, "tpot_ms", "p99"): frozenset([run.pooled[0].label])}
    assert why in latency_table(unsure, "tpot_ms", best).notes
    assert why not in latency_table(unsure, "tpot_ms", {}).notes
    once = [s.model_copy(update={"rates_ci": {}}) for s in unsure]  # as of one repeat
    assert why not in latency_table(once, "tpot_ms", best).notes


def test_what_intervals_are_of_is_said_where_an_engine_has_one_repeat(run, small):
    """A rate of one repeat has no interval."""
    assert headline_table(run.pooled, {}).intervals == "95 % intervals"
    within = "95 % intervals within the one repeat"
    assert headline_table(small.pooled, {}).intervals == f"{within}; rates have none"
    assert latency_table(small.pooled, "ttft_ms", {}).intervals == within
    assert f"In brackets: {within}.\n" in summary(small)
    once = [s.model_copy(update={"rates_ci": {}}) if s.label == "vLLM" else s for s in run.pooled]
    mixed = "95 % intervals; where an engine has one repeat, within it"
    assert headline_table(once, {}).intervals == f"{mixed}, and rates have none"
    assert latency_table(once, "ttft_ms", {}).intervals == mixed


def test_engines_that_have_different_loads_are_not_said_to_be_unmeasured(run):
    """As those of a search."""
    some = [s for s in run.pooled if (s.label == "vLLM") == (s.load.value == 0.4)]
    notes = headline_table(some, {}).notes
    assert "–: not measured at that load." in notes and not any("– for vLLM" in note for note in notes)


def test_a_percentile_below_p99_says_that_the_number_of_requests_decides(run, small):
    note = "p90 of TTFT and TPOT: p99 needs 100 requests of every engine at every load."
    assert note in headline_table(small.pooled, {}).notes and note in summary(small)
    assert not any("needs" in said for said in headline_table(run.pooled, {}).notes)
    tiny = [s.model_copy(update={"tpot_ms": s.tpot_ms.model_copy(update={"n": 9})}) for s in run.pooled]
    note = "p50 of TPOT: p90 needs 10 requests of every engine at every load."
    assert note in headline_table(tiny, {}).notes


def with_intervals(found, statistics):
    """The distribution with these intervals alone."""
    return found.model_copy(update={"ci": {name: (getattr(found, name),) * 2 for name in statistics}})


def test_a_percentile_without_support_is_withheld_and_says_what_it_needs(small):
    shown = latency_table(small.pooled, "ttft_ms", {})
    p99 = shown.rows[0][3]
    assert (p99.text, p99.value, p99.remark) == ("–", None, "p99 is withheld, it needs 40 more samples")
    assert shown.notes == ["–: p99 needs 100 samples; up to 40 are missing."]
    assert headline_table(small.pooled, {}).columns[1].group == "TTFT p90, ms"


def test_failures_stand_beside_the_rates(run):
    shown = throughput_table(run.pooled)
    (row,) = [row for row in shown.rows if row[0].text == "vLLM" and row[1].text == "0.4"]
    by = dict(zip(shown.headers, (cell.text for cell in row), strict=True))
    assert (by["requests"], by["failed"], by["errors"]) == ("240", "3", "disconnected 1, timeout 2")
    assert by["valid"] == "no"


def test_a_closed_loop_s_levels_are_its_loads(swept):
    assert shown_load(swept.pooled).value == 64
    shown = latency_table(swept.pooled, "ttft_ms", {})
    groups = [column.group for column in shown.columns[1::3]]
    assert groups == ["1 in flight", "8 in flight", "64 in flight"]
    rates = throughput_table(swept.pooled)
    assert rates.headers[1] == "in flight" and [row[1].text for row in rates.rows[:3]] == ["1", "8", "64"]
    assert "offered req/s" not in rates.headers  # it offers what is answered
    assert swept.disagreements == [] and "scale" not in summary(swept)


def test_summary_markdown_has_the_same_rows_as_the_tables(run):
    text = summary(run)
    engines = "SGLang / vLLM / roseinfer / roseinfer (-mp async admit)"
    assert text.startswith(f"# gpt2 bf16 · CPU, 2 cores · {engines}\n")
    assert " roseinfer (-mp async admit): Tokenizes texts where HTTP is handled." in text
    assert "| engine | scale 0.4 p50 | scale 0.4 p90 | scale 0.4 p99 |" in text
    best = best_labels(run.pooled, run.results.comparisons)
    lines = latency_table(run.pooled, "itl_ms", best).lines
    for row in lines:
        assert f"| {' | '.join(row).replace('*', chr(92) + '*')} |" in text
    invalid = next(row for row in lines if row[0] == "vLLM")
    assert all(cell.endswith(" †") for cell in invalid[1:4]) and not any("†" in cell for cell in invalid[4:])
    assert re.fullmatch(r"[\d.,]+ \([\d.,]+–[\d.,]+\)( [*†‡]+)?", lines[0][1])
    assert "\n† Invalid: shown, and not compared.\n" in text and "In brackets: 95 % intervals." in text


@pytest.mark.parametrize("mark", ["best", "invalid", "inferred"])
def test_marks_travel_in_text(mark):
    marked: dict[str, Any] = {mark: True}
    columns = [Column.text("engine", ["a"]), Column("p50", [Cell("1.5", 1.5, "1.4–1.6", **marked)])]
    given = Table("t", "t", columns)
    sign, meaning = MARKS[mark]
    assert given.lines == [["a", f"1.5 (1.4–1.6) {sign}"]]
    assert given.legend == [f"{sign} {meaning}", "In brackets: 95 % intervals."]


def test_inferred_numbers_are_marked_everywhere(run):
    """SGLang's chunks carry two tokens: which came when is not known."""
    assert {s.label for s in run.pooled if s.itl_ms.source == "inferred"} <= {"SGLang"}
    pooled = [
        s.model_copy(update={"itl_ms": s.itl_ms.model_copy(update={"source": "inferred"})})
        for s in run.pooled
    ]
    shown = latency_table(pooled, "itl_ms", {})
    assert all(cell.inferred for row in shown.rows for cell in row[1:])
    assert any("‡" in line for line in shown.legend)
    others = latency_table(pooled, "e2e_ms", {})
    assert not any(cell.inferred for row in others.rows for cell in row)


def test_results_csv_marks_what_is_withheld(small):
    rows = list(csv.DictReader(io.StringIO(results_csv(small))))
    by = {(row["metric"], row["statistic"]): row for row in rows if row["repeat"] == ""}
    p99, found = by["ttft_ms", "p99"], small.pooled[0].ttft_ms
    assert (p99["mark"], p99["lo"], p99["hi"]) == ("withheld", "", "")
    assert float(p99["value"]) == pytest.approx(found.p99, rel=1e-6) and found.withheld == ["p99"]
    p50 = by["ttft_ms", "p50"]
    assert p50["mark"] == "" and float(p50["lo"]) < float(p50["value"]) < float(p50["hi"])
    assert p50["unit"] == "ms" and p50["valid"] == "True"


def test_markdown_cells_hold_hostile_text():
    hostile = Table("t", "t", [Column.text("a|b", ["x|y\n| <b>`*_[z](u)"])])
    line = markdown(hostile).splitlines()[4]
    assert line == r"| x\|y \| &lt;b>\`\*\_\[z\](u) |"


# --- Lengths ---------------------------------------------------------------------------------------------


def rows(label: str, cell: int, answers: list[int], ends: list[str]) -> list[dict[str, object]]:
    empty: dict[str, object] = dict.fromkeys(REQUESTS.names)
    return [
        empty
        | {"cell": cell, "engine": label, "label": label, "repeat": 0, "request": i, "input_tokens": 10 + i}
        | {"load": load_text(ClosedLoop(concurrency=4)), "output_tokens": 64, "completion_tokens": tokens}
        | {"t_sent": 0.0, "t_first": 1.0, "t_last": 2.0, "t_end": 2.0, "chunks": 1, "finish_reason": end}
        for i, (tokens, end) in enumerate(zip(answers, ends, strict=True))
    ]


def table_of(*engines: list[dict[str, object]]):
    requests = pd.DataFrame([row for engine in engines for row in engine], columns=REQUESTS.names)
    chunks = pd.DataFrame(columns=CHUNKS.names).astype({"t": "float64", "tokens": "int32"})
    chunks = chunks.astype({"cell": "int64", "request": "int64"})
    return lengths_table(split(requests, chunks))


def test_each_engine_has_its_lengths_and_how_many_ended_by_themselves():
    found = table_of(
        rows("a", 0, [10, 20, 30, 40], ["stop", "stop", "stop", "length"]),
        rows("b", 1, [64, 64, 64, 64], ["length"] * 4),
    )
    assert [line[0] for line in found.lines] == ["a", "b"]
    heads = list(found.headers)
    a, b = (dict(zip(heads, line, strict=True)) for line in found.lines)
    assert (a["answer mean"], a["answer p50"], a["ended by itself"]) == ("25.0", "25", "75 %")
    assert (b["answer mean"], b["answer p90"], b["ended by itself"]) == ("64.0", "64", "0 %")
    assert a["prompt p50"] == "12"


def test_answers_of_one_length_need_no_table():
    assert table_of(rows("a", 0, [5, 5], ["length"] * 2), rows("b", 1, [5, 5], ["length"] * 2)) is None


def test_turns_of_sessions_have_a_row_for_each_range():
    """Turn n has a prompt of 100 n tokens and its first token after 10 n ms."""
    given = rows("a", 0, [4] * 24, ["stop"] * 24)
    for turn, row in enumerate(given):
        row |= {"session": 0, "turn": turn, "prompt_tokens": 100 * (turn + 1)}
        row |= {"t_sent": 1.0, "t_first": 1.0 + 0.01 * (turn + 1)}
    requests = pd.DataFrame(given, columns=REQUESTS.names)
    chunks = pd.DataFrame(columns=CHUNKS.names).astype({"t": "float64", "tokens": "int32"})
    groups = split(requests, chunks.astype({"cell": "int64", "request": "int64"}))
    shown = turns_table(groups)
    assert shown is not None
    heads = list(shown.headers)
    by_turn = {line[heads.index("turn")]: line for line in shown.lines}
    assert [line[heads.index("requests")] for line in shown.lines] == ["1", "4", "15", "4"]
    assert list(by_turn) == ["1", "2 to 5", "6 to 20", "from 21"]
    assert by_turn["2 to 5"][heads.index("prompt p50")] == "350"
    assert float(by_turn["6 to 20"][heads.index("TTFT p50")]) == pytest.approx(130)
    assert (
        turns_table(split(requests.assign(turn=None), chunks.astype({"cell": "int64", "request": "int64"})))
        is None
    )


def test_what_is_not_a_number_is_not_shown():
    column = Column.number("TPOT", [np.nan, None, 2.0])
    assert [cell.text for cell in (*column.cells, Cell.share(np.nan))] == [DASH, DASH, "2.00", DASH]


def test_speed_and_tokens_a_chunk_by_category():
    """Chunks after the first have 3 tokens in 30 ms where prompts are code, and 1 where they are prose."""
    given = rows("a", 0, [7] * 4, ["stop"] * 4)
    times = []
    for number, row in enumerate(given):
        tokens = 3 if number % 2 else 1
        row |= {"category": "code" if number % 2 else "prose", "completion_tokens": 1 + 2 * tokens}
        row |= {"t_sent": 1.0, "t_first": 1.1, "t_last": 1.16, "request": number}
        times += [(0, number, 1.1 + 0.03 * place, tokens if place else 1) for place in range(3)]
    types = {"cell": "int64", "request": "int64", "tokens": "int32"}
    requests, chunks = (
        pd.DataFrame(given, columns=REQUESTS.names), pd.DataFrame(times, columns=CHUNKS.names).astype(types)
    )  # fmt: skip
    shown = category_table(split(requests, chunks))
    assert shown is not None
    code, prose = (dict(zip(shown.headers, line, strict=True)) for line in shown.lines)
    assert (code["category"], code["requests"], code["tokens a chunk"]) == ("code", "2", "3.00")
    assert (prose["category"], prose["tokens a chunk"]) == ("prose", "1.00")
    assert float(code["TPOT p50 ms"]) == pytest.approx(10) == float(prose["TPOT p50 ms"]) / 3
    assert category_table(split(requests.assign(category=None), chunks)) is None
