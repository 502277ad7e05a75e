"""The journal survives being cut off at any byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.plain_text import visible
from harness.runs.journal import ClientSpent, JournalEntry, append_journal, read_journal
from harness.schema.fairness import ReportedMean
from harness.schema.load import TraceLoad
from harness.schema.results import PrefixCount

SECONDS = st.floats(0, 1e6)
TEXT = st.text().map(visible)

entries = st.builds(
    JournalEntry,
    cell=st.integers(0, 99),
    engine=st.sampled_from(["roseinfer", "vllm"]),
    variant=st.none() | TEXT,
    label=TEXT,
    load=st.builds(TraceLoad, scale=st.floats(0.1, 10)),
    repeat=st.integers(0, 3),
    finished=st.just("2030-01-01T00:00:00Z"),
    clients=st.lists(st.builds(ClientSpent, client=st.integers(0, 9), cpu_s=SECONDS, wall_s=SECONDS)),
    prefix_cache=st.none() | st.builds(PrefixCount, hits=SECONDS, queries=SECONDS, source=TEXT),
    summary=st.none(),
    reported=st.dictionaries(TEXT, st.builds(ReportedMean, mean_ms=SECONDS, n=st.integers(1, 9))),
)


@given(written=st.lists(entries, max_size=5), cut=st.integers(0, 100_000), more=entries)
def test_a_journal_cut_anywhere_keeps_its_whole_lines(written, cut, more):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        ends = [0]
        for entry in written:
            append_journal(path, entry)
            ends.append(path.stat().st_size)
        assert read_journal(path) == written
        if written:
            cut %= ends[-1] + 1
            with path.open("r+b") as file:
                file.truncate(cut)
        kept = [entry for entry, end in zip(written, ends[1:], strict=True) if end <= cut]
        assert read_journal(path) == kept
        append_journal(path, more)
        assert read_journal(path) == [*kept, more]


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal.jsonl") == []


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"cell": 0}\n{"cell": 1}\n')
    with pytest.raises(UsageError, match=r"journal\.jsonl, line 1"):
        read_journal(path)
