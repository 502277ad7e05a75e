"""Shapes of models from their folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roseinfer.models import config


@pytest.mark.parametrize(
    ("own", "generation", "ends"),
    [
        ({}, {}, (50256,)),
        ({}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": 9}, {"eos_token_id": [7]}, (7, 9)),
    ],
)
def test_ends_of_text(
    tmp_path: Path, own: dict[str, object], generation: dict[str, object], ends: tuple[int, ...]
) -> None:
    """Those of both files; GPT-2's own where neither names one."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"} | own))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert config.read(tmp_path).eos_token_ids == ends
