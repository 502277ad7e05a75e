"""The reference as a process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.fairness.reference import Reference, ask_reference
from harness.models.model_folder import resolve

pytestmark = pytest.mark.integration


def test_why_it_gave_no_answers_is_a_sentence(tmp_path: Path) -> None:
    python, log = tmp_path / "python", tmp_path / "reference.log"
    python.write_text("#!/bin/sh\necho 'RuntimeError: no kernel for this'; exit 3\n")
    python.chmod(0o755)
    found = ask_reference(python, tmp_path, "cpu", "float32", [[1]], 1, log)
    assert found == "transformers ended with exit code 3: RuntimeError: no kernel for this"


def test_an_answer_stops_before_its_end_of_sequence(tmp_path: Path) -> None:
    """Of both files that name such tokens; the candidates for it are kept apart."""
    from harness.fairness.reference_worker import main

    model = Path(shutil.copytree(resolve("random:gpt2-tiny").path, tmp_path / "model"))
    job = {
        "model": str(model), "device": "cpu", "dtype": "float32", "prompts": [[5, 6, 7]], "output_tokens": 8,
        "candidates": 3,
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))

    def answered() -> Reference:
        main(str(tmp_path / "job.json"), str(tmp_path / "result.json"))
        return Reference.model_validate_json((tmp_path / "result.json").read_bytes())

    [whole] = answered().answers
    assert len(whole.tokens) == 8 and whole.end is None
    end = whole.tokens[4]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    found = answered()
    stop = whole.tokens.index(end)
    [ended] = found.answers
    assert end in found.ends and ended.tokens == whole.tokens[:stop]
    assert ended.candidates == whole.candidates[:stop] and ended.end == whole.candidates[stop]
