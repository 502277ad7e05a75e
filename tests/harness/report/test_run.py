"""What is not a finished run is refused with one sentence and a hint."""

import errno
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.records import parquet
from harness.runs.reader import load_run, load_runs


@pytest.fixture
def copy(online_run, tmp_path):
    return shutil.copytree(online_run, tmp_path / "run")


def test_both_kinds_are_read(online_run, offline_run):
    online, offline = load_runs([online_run, offline_run])
    assert len(online.pooled) == 12 and len(online.repeats) == 24
    assert len(online.requests) == 24 * 120
    assert online.meta.kind == "online" and offline.meta.kind == "offline"


def test_no_run_and_what_is_not_one(tmp_path):
    with pytest.raises(UsageError, match="no run is named"):
        load_runs([])
    with pytest.raises(UsageError, match=r"there is no run\.json"):
        load_runs([tmp_path])


def test_an_unfinished_run_names_the_way_on(copy):
    (copy / "online_results.json").unlink()
    with pytest.raises(UsageError, match="not finished") as caught:
        load_run(copy)
    assert caught.value.hint == f"finish it: bench online --resume {copy}"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema_version": 7}', '{"schema_version": 1, "meta": 3}', None]
)
def test_broken_results(copy, text):
    """None: a number that JSON does not have."""
    path = copy / "online_results.json"
    if text is None:
        text = re.sub(r'"duration_s": [^,]*', '"duration_s": NaN', path.read_text(), count=1)
    path.write_text(text)
    with pytest.raises(
        UsageError,
        match=r"online_results\.json is (not as this version of bench writes it|damaged or cut off): ",
    ):
        load_run(copy)


@pytest.mark.parametrize("name", ["requests.parquet", "chunks.parquet"])
def test_missing_and_broken_tables(copy, name):
    (copy / name).write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match=f"{name} is not a readable parquet file"):
        load_run(copy)
    (copy / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is missing"):
        load_run(copy)


def test_a_table_for_which_no_descriptor_is_left_is_not_called_broken(copy, monkeypatch):
    def read(*arguments):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(parquet, "_read_columns", read)
    with pytest.raises(OSError, match="Too many open files"):
        load_run(copy)


def test_a_missing_column(copy):
    pq.write_table(pa.table({"cell": [1]}), copy / "chunks.parquet")
    with pytest.raises(UsageError, match="has no column request, t, tokens"):
        load_run(copy)
