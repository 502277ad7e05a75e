from pathlib import Path

import pytest

from harness.cli.report import default_name, report
from harness.errors import BenchError, UsageError


def test_the_name_says_which_runs(tmp_path):
    assert default_name([tmp_path / "online_1"]) == "online_1"
    assert default_name([tmp_path / "online_1", tmp_path / "offline_1"]) == "online_1_and_1_more"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        report([Path("outputs")], tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    with pytest.raises(BenchError, match="cannot create /proc/no: "):
        report([tmp_path], Path("/proc/no/report.html"))


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(UsageError, match="absent is not a folder"):
        report([tmp_path / "absent"], tmp_path / "out.html")
