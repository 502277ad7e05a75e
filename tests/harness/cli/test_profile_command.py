"""`bench profile`: what it refuses before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.commands import app
from harness.errors import UsageError
from harness.runs.folder import lock_run


def test_a_run_that_is_worked_on_is_not_profiled(tmp_path: Path) -> None:
    with lock_run(tmp_path), pytest.raises(UsageError, match="still going on"):
        CliRunner().invoke(app, ["profile", str(tmp_path), "--quiet"], catch_exceptions=False)
