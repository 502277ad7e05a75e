"""The engines of a run, and how a batch is measured through them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import JsonValue

from harness.engines.base import EngineVariant, Installation
from harness.engines.placement import CpuSplit, Placement
from harness.engines.registry import get_engine_variant
from harness.engines.selection import Selection, batch_variants, skipped_of_batch
from harness.engines.variants import Variant
from harness.schema.setting_types import EngineRef

pytestmark = pytest.mark.integration


def test_what_a_node_has_is_said_without_the_types_of_our_code() -> None:
    installations = [
        Installation("roseinfer", "0.2.0", "roseinfer", Path("/a/python"), "here"),
        Installation("vllm", "0.32.0", "vllm", Path("/b/python"), "here", versions={"torch": "2.9"}),
    ]
    placement = Placement("cpu", "fp32", 2, CpuSplit(None, None))
    assert Selection([], {}, installations, [], None, placement).equipment == (
        "cpu, fp32, 2 threads, roseinfer 0.2.0 at /a/python, vllm 0.32.0 (torch 2.9) at /b/python"
    )
    placement = Placement("cuda", "fp16", "auto", CpuSplit(None, None))
    assert Selection([], {}, [], [], None, placement).equipment == "cuda, fp16"


def labels(*engine_variants: EngineVariant) -> list[tuple[str, bool]]:
    """Return labels, and whether they are asked in process, of what can be measured."""
    measured = batch_variants(engine_variants)
    skipped = {fault.label for fault in skipped_of_batch(measured, mixed=False)}
    return [(each.label, each.in_process) for each in measured if each.label not in skipped]


def test_roseinfer_stands_twice():
    assert labels(get_engine_variant(EngineRef(name="roseinfer"))) == [
        ("roseinfer", False),
        ("roseinfer (in-process)", True),
    ]


def test_a_variant_in_process_has_one_pair_of_parentheses():
    engine_variant = get_engine_variant(EngineRef.model_validate("roseinfer@one-thread"))
    assert labels(engine_variant)[1][0] == "roseinfer (one thread, in-process)"


def test_what_cannot_be_measured_is_named():
    openai = get_engine_variant(EngineRef(name="openai"))
    served_only = EngineVariant(
        EngineRef.model_validate("roseinfer@x"), Variant(label="x", offline=None), "r (x)"
    )
    assert labels(openai, served_only) == [("r (x)", False)]
    [skip] = skipped_of_batch(batch_variants([openai, served_only]), mixed=False)
    assert (skip.label, skip.repeat) == ("openai", None)


def test_an_api_for_one_length_takes_no_others():
    transformers = batch_variants([get_engine_variant(EngineRef(name="transformers"))])
    assert not skipped_of_batch(transformers, mixed=False)
    assert "one length" in skipped_of_batch(transformers, mixed=True)[0].reason


@pytest.mark.parametrize("offline", [{}, {"max_batch_size": 4}])
def test_options_of_the_server_alone_are_measured_through_it_alone(offline: dict[str, JsonValue]):
    """In-process it would be the engine as it is, under the variant's name."""
    variant = Variant(label="x", args=["--max-batch-size", "4"], offline=offline)
    both = [("r (x)", False), ("r (x, in-process)", True)]
    of_roseinfer = EngineVariant(EngineRef.model_validate("roseinfer@x"), variant, "r (x)")
    assert labels(of_roseinfer) == (both if offline else both[:1])
    inline = EngineRef(name="roseinfer", variant="y", base="max-batch-4", args=["--no-mixed-steps"])
    assert [in_process for _, in_process in labels(get_engine_variant(inline))] == [False]
    other = EngineVariant(EngineRef.model_validate("transformers@x"), variant, "t (x)")
    assert labels(other) == ([("t (x)", True)] if offline else [])
