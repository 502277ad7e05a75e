"""Models whose requests have a state beside their keys and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from roseinfer.config import ConfigError
from roseinfer.engine import cache_size
from roseinfer.engine.core import Engine
from tests.roseinfer.conftest import config_of, generate, on_models, traffic

pytestmark = on_models(["qwen3_5"])
REQUESTS = traffic(7, 12, [16, 32, 70, 130], [1, 20, 60], max_tokens=range(2, 26), temperature=[0.0, 0.9])


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    """Answers of an engine that never has two requests."""
    engine = Engine(config_of(folder, overlap_schedule=False))
    return [generate(engine, [request])[0].tokens for request in REQUESTS]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_active_requests": 6, "overlap_schedule": True},
        {
            "kv_tokens": 220,
            "block_size": 4,
            "overlap_schedule": True,
            "chunked_prefill_size": 24,
            "max_batch_size": 5,
        },
        {"kv_tokens": 220, "block_size": 4, "decode_first": False, "prefill_max_tokens": 2048},
    ],
    ids=lambda settings: "+".join(settings),
)
def test_who_comes_leaves_or_is_preempted_changes_no_answer(folder, alone, settings):
    engine, rng = Engine(config_of(folder, **settings)), np.random.default_rng(5)
    arrives = np.sort(rng.integers(0, 13, len(REQUESTS)))
    leaves = np.where(rng.random(len(REQUESTS)) < 0.3, arrives + rng.integers(0, 12, len(REQUESTS)), 10**6)
    answers: list[list[int]] = [[] for _ in REQUESTS]
    added, number = 0, 0
    while added < len(REQUESTS) or engine.has_work:
        while added < len(REQUESTS) and arrives[added] <= number:
            prompt, params = REQUESTS[added]
            engine.add(added, np.array(prompt, np.int32), params)
            added += 1
        for index in np.flatnonzero(leaves == number).tolist():
            engine.discard(index)
        step = engine.step()
        number += 1
        for id, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True) if step else ():
            answers[id].append(token)
    engine.check_idle()
    whole = leaves == 10**6
    assert [len(a) for a, b in zip(answers, whole, strict=True) if b] == [
        len(a) for a, b in zip(alone, whole, strict=True) if b
    ]
    assert answers == [tokens[: len(answer)] for tokens, answer in zip(alone, answers, strict=True)]
    assert (engine.preemptions > 1) == ("kv_tokens" in settings)


def test_what_does_not_work_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(config_of(folder, prefix_cache=True, speculate="ngram"))
    assert not engine.info.config.prefix_cache and "prefix cache is off" in caplog.text
    assert engine.info.config.speculate is None and "speculation is off" in caplog.text
    assert engine.info.model.state_bytes == 3 * 4 * (4 * 32 * 48 + 3 * (2 * 2 * 32 + 4 * 48))
    for settings in (
        {"tensor_parallel_size": 2},
        {"quantization": "fp8"},
        {"batch_invariant": True, "dtype": "bf16"},
    ):
        with pytest.raises(ConfigError, match=r"--(tensor-parallel-size|quantization|batch-invariant)"):
            Engine(config_of(folder, **settings))
    monkeypatch.setattr(cache_size, "kv_bytes", lambda config, device: 256 * engine.info.model.state_bytes)
    with pytest.raises(ConfigError, match="fewer --max-active-requests"):
        Engine(config_of(folder, kv_tokens=None))


def test_a_checkpoint_that_also_has_images(folder: Path, tmp_path: Path, alone: list[list[int]]) -> None:
    """The text model has other names there; tensors for images and more tokens are ignored."""
    stored = {
        name.replace("model.", "model.language_model."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    stored |= {name: torch.zeros(2) for name in ("mtp.norm.weight", "model.visual.pos_embed.weight")}
    save_file(stored, tmp_path / "model.safetensors")
    text: dict[str, Any] = json.loads((folder / "config.json").read_text())
    raw = {
        "model_type": text["model_type"].removesuffix("_text"), "vision_config": {"depth": 2},
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": {name: value for name, value in text.items() if name != "tie_word_embeddings"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    engine = Engine(config_of(tmp_path))
    assert [answer.tokens for answer in generate(engine, REQUESTS[:2])] == alone[:2]
