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
    "items", "dataset", "fit", "commit", "fields", "named",
}  # fmt: skip
TRUE = {"opening", "ended", "offline", "ample", "steady", "until"}
#: Ways to read a sentence that the program wrote.
READING = re.compile(
    r"\.(?:text|title|detail|label|note|reason|origin|verdict|a|b)\b(?: or \"\")?\)?"
    r"\.(?:startswith|endswith|r?partition|r?split|remove(?:prefix|suffix))\("
    r"|\b(?:label|title|note|what|sentence)\.(?:startswith|endswith|r?partition|remove(?:prefix|suffix))\(\"[^\")]"
    r"|[\"'] in [\w.()]*\.(?:text|title|detail|label|note|reason)\b"
    r"|re\.(?:search|match|fullmatch|findall|sub)\([^)]*(?:sentence|notice|verdict|origin)"
    r"|(?:str\(sentence\)|str\(notice\)|_name\([^)]*\))\.(?:startswith|endswith|partition|split|replace)"
)


BETTER = [("p50", "by 1.20×", ""), ("p90", "by 1.30×", "")]
OF_SOME = [("p50", "", ""), ("p90", "", "b")]


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
    values = {
        "place": "At 8", "label": "a", "labels": "a and b", "metrics": "TTFT p50 and TPOT p50", "invalid": 2,
        "cells": "2 cells", "why": "it ended", "limits": "TTFT p99 ≤ 1 s", "amount": "12 in flight",
        "interval": "10 to 14", "objective": "TPOT p50", "value": "4 ms", "before": "5 ms",
        "times": "0.8 times as much, 0.7 to 0.9", "settings": "--x 1", "but": "",
        "metric": "TTFT", "shorter": "a", "longer": "b", "ms": "12.0", "part": "queue", "part_ms": "9.0",
        "rest_ms": "3.0", "comparisons": "63 comparisons", "better": "a is better in TTFT p50 by 1.20×",
    }  # fmt: skip
    sentences = [
        wording.wins("At 8", {"a": [wording.better_in("ttft_ms", BETTER, ["p99"])]}, ["TPOT"]),
        wording.wins("At 8", {"a": ["TTFT p50"], "b": ["TPOT p50"]}, []),
        wording.wins("At 8", {"a": [wording.better_in("ttft_ms", OF_SOME, ["p99"])]}, []),
        wording.wins("At 8", {"a": [wording.better_in("ttft_ms", OF_SOME[1:], [])]}, []),
        wording.kept_up("At 8", [("a", "17.0", False), ("b", "10.9", True)]),
        *(wording.sentence(kind, **values) for kind in wording.ANSWERS),
    ]
    marked = ["".join(f"**{part}**" if bold else part for part, bold in each.marked) for each in sentences]
    return "\n".join([*lines, "", *marked, wording.not_significant(63)]) + "\n"


def test_the_words_are_those_of_the_snapshot() -> None:
    if os.environ.get("UPDATE_WORDING"):
        SNAPSHOT.write_text(rendered(), encoding="utf-8")
    assert rendered() == SNAPSHOT.read_text(encoding="utf-8"), "UPDATE_WORDING=1 writes wording.txt anew"


def test_every_kind_has_words_for_each_of_its_values_and_no_others() -> None:
    assert WORDING.keys() == KINDS.keys()
    for kind, row in WORDING.items():
        names = set(re.findall(r"\{(\w+)\}", " ".join([row.title, row.text, *row.more.values()])))
        assert {*KINDS[kind]} == (names | row.more.keys()) - {"engines"}, kind


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
