"""The reference as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.fairness.reference import ask_reference

pytestmark = pytest.mark.integration


def test_why_it_gave_no_answers_is_a_sentence(tmp_path: Path) -> None:
    python, log = tmp_path / "python", tmp_path / "reference.log"
    python.write_text("#!/bin/sh\necho 'RuntimeError: no kernel for this'; exit 3\n")
    python.chmod(0o755)
    found = ask_reference(python, tmp_path, "cpu", "float32", [[1]], 1, log)
    assert found == "transformers ended with exit code 3: RuntimeError: no kernel for this"
