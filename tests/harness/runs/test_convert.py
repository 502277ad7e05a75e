"""Runs that version 0.1 stored become runs of today: a trace, closed loops, a batch, with profiles."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from harness.cli.commands import app
from harness.compare.compare_runs import compare_runs
from harness.errors import UsageError
from harness.profiling.profile_files import read_manifest, read_profiles
from harness.report.render import write_report
from harness.runs.answers import judged_answers
from harness.runs.convert import convert_run
from harness.runs.reader import OnlineRun, load_run
from harness.runs.run_state import Run
from harness.schema.load import ClosedLoop, TraceLoad, parse_load
from harness.schema.online_summary import OnlineSummary

STORED = Path(__file__).parents[2] / "fixtures" / "schema1"
KINDS = ("trace", "closed_loop", "offline")


@pytest.fixture(params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED / request.param, tmp_path / request.param))


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in pairs:
            yield from leaves(item, (*place, str(key)))
    else:
        yield place, value


def test_every_command_names_the_way_to_convert(stored: Path) -> None:
    for read in (load_run, Run.open, read_manifest, lambda run: compare_runs(run, run)):
        if read is read_manifest and not (stored / "profile_manifest.json").exists():
            continue
        with pytest.raises(UsageError, match="is of schema 1") as raised:
            read(stored)
        assert raised.value.hint == f"convert the run: bench convert-run {stored}"


def test_a_converted_run_is_read_and_the_original_kept(stored: Path, tmp_path: Path) -> None:
    before = content(stored)
    converted = convert_run(stored, tmp_path / "converted")
    assert content(stored) == before
    assert set(content(converted)) == set(before)
    run = load_run(converted)
    assert run.meta.schema_version == 2
    if isinstance(run, OnlineRun):
        assert run.disagreements == []
    assert write_report([converted], tmp_path / "report.html").stat().st_size > 10_000
    with pytest.raises(UsageError, match="is of schema 2 already"):
        convert_run(converted, None)
    with pytest.raises(UsageError, match="is there already"):
        convert_run(stored, converted)


def test_every_number_of_a_trace_stays(tmp_path: Path) -> None:
    """Only the intervals differ: those of schema 1 were made by resampling."""
    for name in ("trace", "closed_loop"):
        was = json.loads((STORED / name / "online_results.json").read_text())
        run = load_run(convert_run(STORED / name, tmp_path / name))
        assert isinstance(run, OnlineRun)
        for old, new in zip(was["summaries"], run.results.summaries, strict=True):
            load = old.pop("scale"), old.pop("concurrency")
            wanted = TraceLoad(scale=load[0]) if load[1] is None else ClosedLoop(concurrency=load[1])
            assert new.load == wanted
            old["late_turns"] = old.pop("held_turns")
            now = dict(leaves(new.model_dump(mode="json")))
            for place, value in leaves(old):
                value = "not reported" if value == "nobody tells" else value
                if "ci" not in place:
                    assert now[place] == value, place


def test_peaks_and_notices_come_from_the_raw_tables(tmp_path: Path) -> None:
    run = load_run(convert_run(STORED / "closed_loop", tmp_path / "run"))
    assert isinstance(run, OnlineRun)

    def of(count: int) -> OnlineSummary:
        return next(summary for summary in run.pooled if summary.load == ClosedLoop(concurrency=count))

    assert (of(1).peak_in_flight, [notice.kind for notice in of(1).notices]) == (1, ["order", "short"])
    assert of(4).peak_in_flight == 4
    few, brief = of(4).notices
    assert few.kind == "short" and few.text.startswith("8 requests for 4 in flight")
    assert brief.kind == "short" and brief.text.startswith("measured for")


def test_journal_answers_and_profiles(tmp_path: Path) -> None:
    trace = convert_run(STORED / "trace", tmp_path / "trace")
    run = Run.open(trace)
    assert len(run.done) == 4 and judged_answers(trace) is not None
    entry = json.loads((trace / "journal.jsonl").read_text().splitlines()[0])
    assert entry["load"] == {"kind": "trace", "scale": 1.0} and entry["clients"][0]["cpu_s"] > 0
    requests = pd.read_parquet(trace / "requests.parquet")
    assert {parse_load(text) for text in requests["load"]} == {TraceLoad(scale=1), TraceLoad(scale=0.5)}
    for name, load in (("closed_loop", ClosedLoop(concurrency=4)), ("offline", None)):
        folder = convert_run(STORED / name, tmp_path / name)
        manifest, profiles = read_manifest(folder), read_profiles(folder)
        assert manifest is not None and manifest.runs[0].load == load
        assert profiles is not None and profiles.figures[0].label == "roseinfer"


def test_a_run_that_names_its_one_number_in_flight_in_the_settings_alone(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(STORED / "closed_loop", tmp_path / "run"))
    info = json.loads((folder / "run.json").read_text())
    info["settings"]["concurrency"] = 4
    (folder / "run.json").write_text(json.dumps(info))
    results = json.loads((folder / "online_results.json").read_text())
    of_four = [summary for summary in results["summaries"] if summary["concurrency"] == 4]
    for summary in of_four:
        del summary["concurrency"]
    kept = {"summaries": of_four, "comparisons": [], "prefixes": [], "meta": info}
    (folder / "online_results.json").write_text(json.dumps(results | kept))
    for table in ("requests", "chunks"):
        (folder / f"{table}.parquet").unlink()
    (folder / "journal.jsonl").unlink()
    converted = json.loads((convert_run(folder, None) / "online_results.json").read_text())
    assert [summary["load"] for summary in converted["summaries"]] == [
        {"kind": "closed_loop", "concurrency": 4}
    ] * 2
    assert [summary["peak_in_flight"] for summary in converted["summaries"]] == [None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_broken_file_leaves_everything_as_it_was(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(STORED / "trace", tmp_path / "run"))
    (folder / "requests.parquet").write_bytes(b"PAR1 not really")
    before = content(folder)
    for target in (None, tmp_path / "there"):
        with pytest.raises(UsageError, match=r"requests\.parquet cannot be read"):
            convert_run(folder, target)
    assert content(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("run.json", "[]", "is not as version 0.1 of bench wrote it"),
        ("run.json", "{}", "is not as version 0.1 of bench wrote it: settings is missing"),
        ("journal.jsonl", "{no", "is not as version 0.1 of bench wrote it"),
        ("journal.jsonl", '{"cell": "x"}', "cell: 'x' must be a whole number"),
        ("skipped.json", '{"a": 1}', "is not as version 0.1 of bench wrote it"),
        ("skipped.json", '[{"a": 1}]', "0.engine: is missing"),
        ("online_results.json", "{}", "is not as version 0.1 of bench wrote it: meta is missing"),
    ],
)
def test_a_damaged_file_is_named_where_it_is(tmp_path: Path, name: str, text: str, fault: str) -> None:
    folder = Path(shutil.copytree(STORED / "trace", tmp_path / "run"))
    (folder / name).write_text(f"{text}\n")
    with pytest.raises(UsageError, match=re.escape(fault)) as raised:
        convert_run(folder, None)
    assert raised.value.message.startswith(f"{folder / name} is") and raised.value.hint == "restore the file"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_survives_a_conversion_that_ends_between_its_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(STORED / "trace", tmp_path / "run"))
    before, rename = content(folder), Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name.endswith(".converting"):
            raise OSError("no")
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no"):
        patch.setattr(Path, "rename", fail)
        convert_run(folder, None)
    assert content(folder) == before

    folder.rename(tmp_path / ".run.schema1")  # as where the command is killed there
    assert load_run(convert_run(folder, None)).meta.schema_version == 2
    shutil.copytree(STORED / "trace", tmp_path / ".run.schema1")  # and after it
    shutil.rmtree(folder)
    shutil.copytree(STORED / "trace", folder)
    convert_run(folder, None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_command(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(STORED / "offline", tmp_path / "run"))
    done = CliRunner().invoke(app, ["convert-run", str(folder)], catch_exceptions=False)
    beside = tmp_path / "run-schema2"
    assert (done.exit_code, done.stdout) == (0, f"{beside}\n")
    assert load_run(beside).meta.kind == "offline"
    done = CliRunner().invoke(app, ["convert-run", str(folder), "--in-place"], catch_exceptions=False)
    assert done.stdout == f"{folder}\n" and content(folder) == content(beside)
