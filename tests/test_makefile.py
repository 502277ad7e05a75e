"""Values of make's variables and of the environment of `make attack`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[1]
ATTACKS = "tests/roseinfer/server/attack"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("names", [(), ("ATTACK_SECONDS", "VENV", "REPEATS"), ("N", "SCALES", "MODEL")])
def test_an_empty_variable_has_its_default(names: tuple[str, ...]) -> None:
    empty = dict.fromkeys(names, "")
    others = {name: value for name, value in os.environ.items() if not name.startswith(("ATTACK", "MAKE"))}
    command = ["make", "-n", "attack", "bench-online"]
    by_environment = subprocess.check_output(command, cwd=ROOT, text=True, env=others | empty)
    on_command_line = [*command, *(f"{name}=" for name in names)]
    assert subprocess.check_output(on_command_line, cwd=ROOT, text=True, env=others) == by_environment
    assert subprocess.check_output(command, cwd=ROOT, text=True, env=others) == by_environment
    assert "ATTACK_SECONDS=20 .venv/bin/python" in by_environment


@pytest.mark.parametrize(
    ("variables", "code", "fault"),
    [
        ({"ATTACK_SECONDS": ""}, pytest.ExitCode.NO_TESTS_COLLECTED, ""),
        ({"ATTACK_SECONDS": "ten"}, pytest.ExitCode.USAGE_ERROR, "ATTACK_SECONDS=ten"),
        ({"ATTACK_SECONDS": "1", "ATTACK_SEED": "x"}, pytest.ExitCode.USAGE_ERROR, "ATTACK_SEED=x"),
    ],
)
def test_numbers_of_attacks(variables: dict[str, str], code: int, fault: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only", ATTACKS]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == code and fault in done.stderr and "Traceback" not in done.stderr
