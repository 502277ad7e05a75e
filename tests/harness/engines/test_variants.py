"""Variants are data, and a wrong one is refused with the names there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines.registry import LOCAL, get_engine_variant
from harness.engines.variants import find_variant, load_variants
from harness.errors import UsageError
from harness.schema.setting_types import EngineRef


def test_shipped_files_are_valid():
    for name in LOCAL:
        for variant in load_variants(LOCAL[name]).values():
            assert variant.label
            assert variant.about


def test_label_of_a_variant():
    labels = [
        get_engine_variant(EngineRef.model_validate(ref)).label
        for ref in ("vllm", "vllm@no-async-scheduling")
    ]
    assert labels == ["vLLM", "vLLM (no async scheduling)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variants: {a: {label: a, argz: [x]}}", r"variants\.a: there is no key 'argz'"),
        ("variants: {a: {args: x}}", r"variants\.a\.args"),
        ("varaints: {}", "varaints"),
        ("variants: [", "not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path, monkeypatch, text, message):
    (tmp_path / "vllm.yaml").write_text(text)
    monkeypatch.setattr(type(LOCAL["vllm"]), "config", tmp_path / "vllm.yaml")
    with pytest.raises(UsageError, match=message):
        load_variants(LOCAL["vllm"])


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "engines.yaml"
    monkeypatch.setenv("BENCH_ENGINES", str(path))
    return path


def test_a_users_own_variant_stands_beside_the_projects(user_file: Path):
    user_file.write_text("roseinfer: {variants: {mine: {label: mine, env: {SLOWED_BY: '0.1'}}}}")
    assert get_engine_variant(EngineRef.model_validate("roseinfer@mine")).label == "roseinfer (mine)"
    assert find_variant(LOCAL["roseinfer"], "mine").env == {"SLOWED_BY": "0.1"}
    assert {"mine", "one-thread"} <= load_variants(LOCAL["roseinfer"]).keys()
    assert "mine" not in load_variants(LOCAL["vllm"])


def test_an_unknown_variant_names_those_there_are_and_the_users_file(user_file: Path):
    user_file.write_text("vllm: {variants: {mine: {}}}")
    with pytest.raises(UsageError, match="vllm has no variant 'fast'") as caught:
        find_variant(LOCAL["vllm"], "fast")
    assert all(
        name in caught.value.hint for name in ("vllm@no-async-scheduling", "vllm@mine", str(user_file))
    )
