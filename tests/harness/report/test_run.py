"""What is not a finished run is refused with one sentence and a hint."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.runs.reader import load_run, load_runs


@pytest.fixture
def copy(online_run, tmp_path):
    return shutil.copytree(online_run, tmp_path / "run")


def test_both_kinds_are_read(online_run, offline_run):
    online, offline = load_runs([online_run, offline_run])
    assert len(online.pooled) == 12 and len(online.repeats) == 24
    assert len(online.requests) == 24 * 200
    assert online.meta.kind == "online" and offline.meta.kind == "offline"


def test_no_run():
    with pytest.raises(UsageError, match="no run is named"):
        load_runs([])


def test_not_a_folder(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        load_run(tmp_path / "absent")


def test_not_a_run(tmp_path):
    with pytest.raises(UsageError, match="holds neither"):
        load_run(tmp_path)


def test_an_unfinished_run_names_the_way_on(copy):
    (copy / "online_results.json").unlink()
    with pytest.raises(UsageError, match="not finished") as caught:
        load_run(copy)
    assert caught.value.hint == f"finish it: bench online --resume {copy}"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 7}', '{"schema_version": 1, "meta": 3}'])
def test_broken_results(copy, text):
    (copy / "online_results.json").write_text(text)
    with pytest.raises(UsageError, match=r"online_results\.json is not as this version of bench writes it: "):
        load_run(copy)


def test_a_number_that_json_does_not_have(copy):
    path = copy / "online_results.json"
    results = json.loads(path.read_text())
    results["summaries"][0]["duration_s"] = float("nan")
    path.write_text(json.dumps(results))
    with pytest.raises(UsageError, match=r"not as this version .*finite number"):
        load_run(copy)


@pytest.mark.parametrize("name", ["requests.parquet", "chunks.parquet"])
def test_missing_and_broken_tables(copy, name):
    (copy / name).write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match=f"{name} is not a readable parquet file"):
        load_run(copy)
    (copy / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing"):
        load_run(copy)


def test_a_missing_column(copy):
    pq.write_table(pa.table({"cell": [1]}), copy / "chunks.parquet")
    with pytest.raises(UsageError, match="has no column request, t, tokens"):
        load_run(copy)
