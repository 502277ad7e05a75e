import os
from pathlib import Path

import pytest

from harness.cli.report import default_name, report
from harness.errors import UsageError
from harness.report.compared import chosen, compared_table, verdict
from harness.runs.reader import load_run
from tests.harness.report.conftest import make_offline


def test_the_name_says_which_runs(tmp_path):
    assert default_name([tmp_path / "online_1"]) == "online_1"
    assert default_name([tmp_path / "online_1", tmp_path / "offline_1"]) == "online_1_and_1_more"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        report([Path("outputs")], tmp_path)


def test_what_is_no_file_is_never_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for target, kind in ((pipe, "a named pipe"), (link, "a device"), (Path("/dev/full"), "a device")):
        with pytest.raises(UsageError, match=f"{target} is {kind}, which is never replaced"):
            report([tmp_path], target)
    assert pipe.is_fifo() and link.is_symlink() and Path("/dev/full").is_char_device()


@pytest.mark.parametrize("place", ["/proc/foo.html", "/proc/no/report.html", "/dev/null/report.html"])
def test_where_nothing_can_be_made(bench, tmp_path, place):
    done = bench("report", str(tmp_path), "--out", place)
    assert done.code == 2 and done.err.startswith(f"bench: {place} cannot be written: "), done.err
    assert "Traceback" not in done.err


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(UsageError, match="absent does not exist"):
        report([tmp_path / "absent"], tmp_path / "out.html")


def test_limits_and_prices_are_not_for_offline_runs(bench, tmp_path):
    run, out = make_offline(tmp_path / "run", repeats=1), tmp_path / "x.html"
    done = bench("report", str(run), "--out", str(out), "--slo", "ttft_p99<=200ms")
    assert done.code == 2 and not out.exists()
    assert "limits and prices are for runs of bench online" in done.err and "hint: " in done.err


def test_two_engines_are_compared_in_the_terminal_as_on_the_page(tmp_path, capfd):
    run, out = Path(__file__).parents[3] / "reports/cpu-smollm2-135m", tmp_path / "x.html"
    report([run], out, compare="roseinfer,vllm", load="1")
    printed = capfd.readouterr().out
    loaded = load_run(run, trust=True)
    choice = chosen(loaded, "roseinfer,vllm", "1")
    assert printed.startswith(str(verdict(loaded, choice)))
    assert all(cell.line in printed for row in compared_table(loaded, choice).rows for cell in row)
    page = out.read_text(encoding="utf-8")
    shown = compared_table(loaded, choice).title
    assert page.index(f'data-title="{shown}"') == page.index('data-name="compared" data-title="') + 21
