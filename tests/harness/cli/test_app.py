"""Whatever is wrong with a command line: one line, what to do about it, exit code 2."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli.commands import COMMANDS, load_command
from harness.runs.folder import lock_run
from tests.harness.report.conftest import make_offline

pytestmark = pytest.mark.integration


NINES = "9" * 400
NOT_COMBINED = "--resume uses the run's own settings and cannot be combined with"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nosuch", "No such command 'nosuch'."),
        ("online --nosuch", "No such option: --nosuch"),
        ("online extra", "Got unexpected extra argument(s) (extra)"),
        ("online --device", "Option '--device' requires an argument."),
        ("online --n x", "--n: Input should be a valid integer"),
        ("online --trace no-such-trace", "there is no trace or file 'no-such-trace'"),
        ("online --model random:x --engines roseinfer", "there is no model 'random:x'"),
        ("online --model /no/such --engines roseinfer", "there is no folder /no/such"),
        ("online --engines ,", "--engines: must have a value before and after each comma"),
        ("online --engines roseinfer@x", "roseinfer has no variant 'x'"),
        ("online --resume no-such-run", "no-such-run holds no run: No such file or directory"),
        ("online --resume x --n 3", f"{NOT_COMBINED} --n"),
        ("online --resume x --config y --no-interleave", f"{NOT_COMBINED} --interleave, --config"),
        ("offline --resume no-such-run", "no-such-run holds no run: No such file or directory"),
        ("offline --resume x --num-prompts 3", f"{NOT_COMBINED} --num-prompts"),
        ("search --resume x --max-seconds 5 --slo 'ttft_p99<=1s'", f"{NOT_COMBINED} --slo, --max-seconds"),
        ("tune vllm --resume x --finalists 5", f"{NOT_COMBINED} ENGINE, --finalists"),
        ("offline --scales 1", "No such option: --scales"),
        ("profile x --tool y", "Invalid value for '--tool': 'y' is not one of 'torch', 'nsys', "),
        ("profile x --steps=z", "Invalid value for '--steps': Input should be a valid integer"),
        (
            f"profile x --steps {'9' * 5000}",
            "Invalid value for '--steps': Unable to parse input string as an ",
        ),
        ("profile x --scale nan", "--scale: Input should be a finite number"),
        ("profile x --concurrency 0", "--concurrency: Input should be greater than or equal to 1"),
        ("profile x --request-rate inf", "--request-rate: Input should be a finite number"),
        ("profile x --engines a,,b", "--engines: 'a,,b' must have a value before and after each"),
        ("compare x x --allow-different a,", "--allow-different: 'a,' must have a value"),
        ("compare x x --gate ''", "'' must have a gate"),
        ("compare x x --gate 'ttft_p99<=10%'", "the gate 'ttft_p99<=10%' does not say whether more or less"),
        (f"compare x x --gate 'e2e_p99<={NINES}ms'", f"'e2e_p99<={NINES}ms' is not a gate"),
        ("search --base-url x --slo ttft_ms=1,", "'ttft_ms=1,' must have a limit before and"),
        ("search --slo ttft_ms=1 --lowest x", "Invalid value for '--lowest': Input should be a valid number"),
        ("search --slo ttft_ms=1 --max-seconds inf", "--max-seconds: Input should be a finite"),
        ("config init ''", ". is not a file"),
        ("report no-such-run", "no-such-run does not exist"),
        ("schema nosuch", "there is no schema 'nosuch'"),
    ],
)
def test_a_wrong_command_line(words: str, message: str, bench: Any) -> None:
    done = bench(*shlex.split(words))
    assert (done.code, done.out) == (2, "")
    line, hint = done.err.splitlines()
    assert line.startswith(f"bench: {message}") and hint.startswith("  hint: ")


def test_a_place_that_cannot_be_written_to(tmp_path: Path, bench: Any) -> None:
    (tmp_path / "file").write_text("kept")
    run = make_offline(tmp_path / "run", repeats=1)
    done = bench("report", str(run), "--out", str(tmp_path / "file" / "report.html"))
    line, hint = done.err.splitlines()
    report = tmp_path / "file" / "report.html"
    assert done.code == 2 and line.startswith(f"bench: {report} cannot be written: ") and "another" in hint
    assert {path.name for path in tmp_path.iterdir()} == {"file", "run"}


def test_a_run_that_is_worked_on_is_not_profiled(tmp_path: Path, bench: Any) -> None:
    with lock_run(tmp_path):
        done = bench("profile", str(tmp_path), "--quiet")
    assert done.code == 2 and "still going on" in done.err


def test_without_a_command_it_shows_its_help(bench: Any) -> None:
    done = bench()
    assert done.code == 2 and "online" in done.out + done.err and "bench:" not in done.err
    assert bench("--help").code == 0


@pytest.mark.parametrize("name", ["online-results", "run", "online-settings", "offline-settings"])
def test_schemas_are_json(name: str, bench: Any) -> None:
    assert json.loads(bench("schema", name).out)["type"] == "object"


@pytest.mark.parametrize(
    "started", ["import harness.cli.app", "from harness.cli.commands import app; app(['--help'])"]
)
def test_what_a_run_needs_is_imported_when_it_runs(started: str) -> None:
    """Ctrl-C during a second of imports must already find `main`; help comes at once."""
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {started}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert not {"torch", "pandas", "scipy", "matplotlib", "pydantic"} & modules


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_by_its_own_summary(name: str) -> None:
    assert load_command(name).help.split("\n\n")[0] == COMMANDS[name]


def test_interrupted_before_a_run_begins(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.runs.online.resolve_online", press)
    done = bench("online", "--out", str(tmp_path / "runs"))
    assert (done.code, done.out, done.err) == (130, "", "bench: interrupted\n")
    assert not (tmp_path / "runs").exists()
