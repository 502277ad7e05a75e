"""The attack suite: `make attack`. Each test says how many inputs it has tried; a table says what survived.

Its tests are collected only where ATTACK_SECONDS, the seconds of each fuzzer, is set and not empty.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from roseinfer import __version__

SECONDS, SEED = "ATTACK_SECONDS", "ATTACK_SEED"
#: Where `--write-table` puts the table: between these lines.
DOCUMENT = Path(__file__).parents[4] / "docs/security.md"
BEGIN, END = "<!-- the table of make attack -->", "<!-- end -->"

collect_ignore_glob = [] if os.environ.get(SECONDS) else ["test_*.py"]


def environment_number(name: str) -> float:
    """Number in a variable of the environment, 0 where it is empty or not set. Raises pytest.UsageError."""
    text = os.environ.get(name) or "0"
    try:
        return float(text)
    except ValueError:
        raise pytest.UsageError(f"{name}={text} is no number") from None


def pytest_configure() -> None:
    """Read the numbers before anything is attacked."""
    for name in (SECONDS, SEED):
        environment_number(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-table", action="store_true", help="put the table of attacks into docs/security.md"
    )


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Say how many inputs have been tried, and what was measured."""
    name = (request.function.__doc__ or "").partition("\n")[0].rstrip(".")

    def say(inputs: int, measured: str = "") -> None:
        request.node.user_properties.append(("attack", (name, inputs, measured)))

    return say


def _first_line(file: str) -> str:
    docstring = ast.get_docstring(ast.parse(Path(file).read_text())) or file
    return docstring.partition("\n")[0].rstrip(".")


def _list(name: str, measured: list[str]) -> list[str]:
    return [f"{name}:", "", *(f"- {figures}" for figures in measured), ""] if measured else []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table, and write it where all has passed."""
    is_worker = hasattr(config, "workerinput")  # which has a part of the tests
    if not os.environ.get(SECONDS) or is_worker:
        return
    rows: dict[str, list[float]] = {}
    measured: dict[str, list[str]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            attack = dict(report.user_properties).get("attack")
            file = str(config.rootpath / report.nodeid.partition("::")[0])
            name, inputs, figures = attack or (_first_line(file), 1, "")
            measured.setdefault(name, []).extend([figures] if figures else [])
            row = rows.setdefault(name, [0, 0, 0.0])
            row[0] += inputs
            row[1] += inputs if outcome == "passed" else 0
            row[2] += report.duration
    lines = ["| attack | inputs tried | survived | seconds |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {tried:,.0f} | {'all' if survived == tried else f'{survived:,.0f}'} | {took:.0f} |"
        for name, (tried, survived, took) in rows.items()
    ]
    lines += ["", *(line for name in rows for line in _list(name, measured[name]))]
    terminalreporter.write_line("")
    terminalreporter.write_line("\n".join(lines))
    failed = terminalreporter.stats.get("failed") or terminalreporter.stats.get("error")
    if config.getoption("--write-table", False) and rows and not failed:
        today = datetime.now(UTC).date()
        machine = f"{os.cpu_count()} cores, {os.environ[SECONDS]} s for each fuzzer"
        heading = f"roseinfer {__version__}, {today}, {machine}."
        text = DOCUMENT.read_text()
        table = "\n".join([BEGIN, heading, "", *lines, END])
        DOCUMENT.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: table, text, flags=re.DOTALL))


@pytest.fixture
def fuzz(tried: Callable[[int], None]) -> Callable[[Callable[[st.DataObject], None]], None]:
    """Try a check with ever new examples until its time is over."""

    def run(check: Callable[[st.DataObject], None]) -> None:
        end, examples = time.monotonic() + environment_number(SECONDS), 0

        def counted(data: st.DataObject) -> None:
            nonlocal examples
            examples += 1
            check(data)

        for number in itertools.count():
            batch = settings(
                max_examples=20, database=None, phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            seed(number)(batch(given(data=st.data())(counted)))()
            if time.monotonic() > end:
                break
        tried(examples)

    return run
