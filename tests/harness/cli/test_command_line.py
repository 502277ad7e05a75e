"""Values of headers stand neither in what is stored nor in the list of processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from harness.cli.command_line import without_secrets
from harness.errors import UsageError
from harness.runs.events import Notify
from harness.schema.online_settings import OnlineSettings


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        (["online", "--header", "X-Key=secret"], ["online", "--header", "X-Key=(hidden)"]),
        (["--header=X-Key=a=b", "--n", "3"], ["--header=X-Key=(hidden)", "--n", "3"]),
        (["--header", "X-Key=env:KEY"], ["--header", "X-Key=env:KEY"]),
        (["--header"], ["--header"]),
    ],
)
def test_what_is_stored(arguments: list[str], stored: list[str]) -> None:
    assert without_secrets(arguments) == stored


@pytest.mark.integration
def test_what_other_users_see() -> None:
    program = (
        "from harness.cli.command_line import clear_process_list, command_line\n"
        "clear_process_list()\n"
        "print(open('/proc/self/cmdline').read(), command_line())"
    )
    arguments = ["--header", "X-Key=s3cret value", "--header=X-Other=s3cret", "--header", "X=env:A"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    assert "s3cret" not in done.stdout
    assert "X-Key=xxxx" in done.stdout and "X=env:A" in done.stdout


def test_a_profile_without_a_benchmark_stores_no_value(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def begin(settings: OnlineSettings, command: list[str], notify: Notify) -> None:
        commands.append(command)
        raise UsageError("it is not profiled", "see the command")

    monkeypatch.setattr("harness.cli.profile.begin_run", begin)
    done = bench("online", "--base-url", "http://h", "--header", "X-Key=s3cret", "--profile-only")
    assert done.code == 2 and commands[0][-2:] == ["X-Key=(hidden)", "--profile-only"]
