"""The engines of a run, and how a batch is measured through them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import JsonValue

from harness.engines.base import EngineVariant, Installation
from harness.engines.placement import CpuSplit, Placement
from harness.engines.registry import get_engine_variant
from harness.engines.selection import Selection, batch_variants, make_engine_variants, skipped_of_batch
from harness.engines.variants import Variant
from harness.errors import UsageError
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import EngineRef, Uniform

pytestmark = pytest.mark.integration

ONE_LENGTH = OnlineSettings(concurrency=1, input_len=8, output_len=4)


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
    skipped = {fault.label for fault in skipped_of_batch(measured, ONE_LENGTH)}
    return [(each.label, each.in_process) for each in measured if each.label not in skipped]


def test_a_variant_that_is_measured_both_ways_has_two_labels_with_one_pair_of_parentheses():
    plain, one_thread = (
        labels(get_engine_variant(EngineRef.model_validate(ref)))
        for ref in ("roseinfer", "roseinfer@one-thread")
    )
    assert plain == [("roseinfer", False), ("roseinfer (in-process)", True)]
    assert one_thread[1][0] == "roseinfer (one thread, in-process)"


def test_what_cannot_be_measured_is_named():
    openai, transformers = (get_engine_variant(EngineRef(name=name)) for name in ("openai", "transformers"))
    served_only = EngineVariant(EngineRef.model_validate("roseinfer@x"), Variant(offline=None), "r (x)")
    assert labels(openai, served_only) == [("r (x)", False)]
    [skip] = skipped_of_batch(batch_variants([openai, served_only]), ONE_LENGTH)
    assert (skip.label, skip.repeat) == ("openai", None)
    assert labels(transformers) == [("transformers", True)]
    mixed = ONE_LENGTH.model_copy(update={"input_len": Uniform(least=1, most=2)})
    assert "one length" in skipped_of_batch(batch_variants([transformers]), mixed)[0].reason


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


def test_two_that_would_be_drawn_alike_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "engines.yaml"
    file.write_text("roseinfer: {variants: {a: {label: x}, b: {label: x}, plain: {}}}")
    monkeypatch.setenv("BENCH_ENGINES", str(file))
    assert get_engine_variant(EngineRef.model_validate("roseinfer@a")).label == "roseinfer (x)"
    for pair in ("roseinfer@a,roseinfer@b", "roseinfer,roseinfer@plain"):
        with pytest.raises(UsageError, match="are both drawn as") as raised:
            make_engine_variants(OnlineSettings(engines=pair))
        assert all(name in raised.value.message for name in pair.split(","))
    assert len(make_engine_variants(OnlineSettings(engines="roseinfer,roseinfer@b"))) == 2
