"""The words of the program: every template rendered once, and nothing that reads them again."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness.report import wording
from harness.report.wording import WORDING, notices_of
from harness.schema.facts import KINDS, Fact, FactKind, Scope, Value
from harness.schema.load import ClosedLoop

ROOT = Path(__file__).parents[3]
#: Written anew by `UPDATE_WORDING=1 pytest …`.
SNAPSHOT = Path(__file__).with_name("wording.txt")
#: Values that are text; those that are truth values; all others are numbers.
TEXT = {
    "node", "statistic", "unit", "detail", "other", "metric", "gpu", "reason", "heavier", "first", "folders",
    "absent", "lacking", "subcommand", "hint", "checks", "option", "model", "listed", "setting", "reported",
    "items", "dataset", "fit", "commit",
}  # fmt: skip
TRUE = {"opening", "ended", "offline", "ample", "steady"}
#: Ways to read a sentence that the program wrote.
READING = re.compile(
    r"\.(?:text|title|detail|label|note|reason|origin|verdict|a|b)\b(?: or \"\")?\)?"
    r"\.(?:startswith|endswith|r?partition|r?split|remove(?:prefix|suffix))\("
    r"|\b(?:label|title|note|what|sentence)\.(?:startswith|endswith|r?partition|remove(?:prefix|suffix))\(\"[^\")]"
    r"|[\"'] in [\w.()]*\.(?:text|title|detail|label|note|reason)\b"
    r"|re\.(?:search|match|fullmatch|findall|sub)\([^)]*(?:sentence|notice|verdict|origin)"
    r"|(?:str\(sentence\)|str\(notice\)|_name\([^)]*\))\.(?:startswith|endswith|partition|split|replace)"
)


def example_value(name: str, repeat: int) -> Value:
    if name in TRUE:
        return True
    if name in TEXT:
        return "ttft_ms" if name == "metric" else name
    return 0.25 + repeat / 4 if name in ("share", "possible") else 4 + repeat


def example(kind: FactKind, engine: str, repeat: int) -> Fact:
    scope = Scope(engine=engine, load=ClosedLoop(concurrency=8), repeat=repeat)
    values = {name: example_value(name, repeat) for name in KINDS[kind]}
    return Fact(kind=kind, scope=scope, values=values)


def rendered() -> str:
    lines = []
    for kind, row in WORDING.items():
        [single] = notices_of([example(kind, "a", 0)])
        [merged] = notices_of([example(kind, engine, repeat) for engine in "ab" for repeat in (0, 1)])
        lines.append(f"{kind} ({row.severity}, {row.topic}, {row.badge})")
        lines += [f"  {notice.title} {notice.detail}" for notice in (single, merged)]
    sentences = [
        wording.better("At 8", "a", ["TTFT p50"], {"b": ["TPOT p99"]}),
        wording.split("At 8", {"a": ["TTFT p50"], "b": ["TPOT p50"]}),
        wording.no_difference("At 8", ["a", "b"], ["TTFT p50", "TPOT p50"]),
        wording.too_few_requests("At 8", ["TTFT", "TPOT"]),
        wording.alone("At 8", "a"),
        wording.nothing_valid(2, 2, notices_of([example("failures", "a", 0)])[0]),
        wording.no_result([("a", "it ended")]),
        wording.no_cell_counts(),
        wording.none_meets("TTFT p99 ≤ 1 s", "1 request in flight"),
        wording.all_meet("TTFT p99 ≤ 1 s", "64 requests in flight"),
        wording.carries("TTFT p99 ≤ 1 s", "a", "12 requests in flight", "10 to 14", True),
        wording.carries("TTFT p99 ≤ 1 s", "a", "12 requests in flight", "10 to 14", False),
        wording.carries_unknown("TTFT p99 ≤ 1 s", "a", "at most 4 requests in flight", "the time was over"),
        wording.tuned("a (1)", "TPOT p50", "4 ms", "5 ms", "0.8 times as much, 0.7 to 0.9", "--x 1"),
        wording.default_invalid("a", "3 of 9 requests failed"),
        wording.not_tuned("a", "it ended"),
        wording.none_better("a", "TPOT p50", ["a (1)"], "TTFT p99 ≤ 1 s"),
    ]
    marked = ["".join(f"**{part}**" if bold else part for part, bold in each.marked) for each in sentences]
    return "\n".join([*lines, "", *marked, wording.not_significant(63)]) + "\n"


def test_the_words_are_those_of_the_snapshot() -> None:
    if os.environ.get("UPDATE_WORDING"):
        SNAPSHOT.write_text(rendered(), encoding="utf-8")
    assert rendered() == SNAPSHOT.read_text(encoding="utf-8")


def test_every_kind_has_words_and_each_name_in_them_is_a_value() -> None:
    assert WORDING.keys() == KINDS.keys()
    for kind, row in WORDING.items():
        names = set(re.findall(r"\{(\w+)\}", " ".join([row.title, row.text, *row.more.values()])))
        assert names <= {*KINDS[kind], "engines"}, kind
        assert row.more.keys() <= set(KINDS[kind]), kind


def test_every_value_of_a_kind_is_said() -> None:
    for kind, row in WORDING.items():
        said = set(re.findall(r"\{(\w+)\}", " ".join([row.title, row.text, *row.more.values()])))
        assert {*KINDS[kind]} <= said | row.more.keys(), kind


def test_nothing_reads_the_words_of_the_program() -> None:
    reading = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "harness").rglob("*"))
        if path.suffix in (".py", ".j2", ".js") and "vendor" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if READING.search(line)
    ]
    assert reading == []


@pytest.mark.parametrize(
    "line",
    [
        'if pair.a.endswith(" (A)"):', 'what, _, by = chart.title.rpartition(", by ")',
        'class="how{{ " needed" if "invalid" in chart.note }}"', '(trace.note or "").startswith("generated")',
        'not result.label.endswith("in-process)")', 'ends=100 if what.endswith("%") else None',
        "statistic_name(d.metric, d.statistic).split(',')[0]",
    ],
)  # fmt: skip
def test_reading_is_seen(line: str) -> None:
    assert READING.search(line)


def test_sentences_of_results_are_built_in_one_module() -> None:
    """Neither metrics nor runs import the report, and a fact has no text of its own."""
    for folder in ("metrics", "fairness", "runs", "schema"):
        for path in (ROOT / "harness" / folder).rglob("*.py"):
            assert "harness.report" not in path.read_text(encoding="utf-8"), path
