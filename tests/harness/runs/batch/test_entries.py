"""Who is measured, and in which order."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import JsonValue

from harness.engines.base import EngineVariant
from harness.engines.registry import LOCAL, get_engine_variant
from harness.engines.variants import Variant
from harness.runs.batch.entries import Entry, make_entries
from harness.runs.schedule import turns
from harness.schema.engine_ref import EngineRef
from harness.schema.settings import OfflineSettings

pytestmark = pytest.mark.integration


def test_roseinfer_stands_twice():
    entries, skipped = make_entries([get_engine_variant(EngineRef(name="roseinfer"))])
    assert [(entry.label, entry.served) for entry in entries] == [
        ("roseinfer", True),
        ("roseinfer (in-process)", False),
    ]
    assert skipped == []


def test_a_variant_in_process_has_one_pair_of_parentheses():
    engine_variant = get_engine_variant(EngineRef.model_validate("roseinfer@one-thread"))
    assert make_entries([engine_variant])[0][1].label == "roseinfer (one thread, in-process)"


def test_what_cannot_be_measured_is_named():
    openai = get_engine_variant(EngineRef(name="openai"))
    served_only = EngineVariant(
        EngineRef.model_validate("roseinfer@x"), Variant(label="x", offline=None), "r (x)"
    )
    entries, skipped = make_entries([openai, served_only])
    assert [entry.label for entry in entries] == ["r (x)"]
    assert [(skip.label, skip.repeat) for skip in skipped] == [("openai", None)]


@pytest.mark.parametrize("offline", [{}, {"max_batch_size": 4}])
def test_options_of_the_server_alone_are_measured_through_it_alone(offline: dict[str, JsonValue]):
    """In-process it would be the engine as it is, under the variant's name."""
    variant = Variant(label="x", args=["--max-batch-size", "4"], offline=offline)
    engine_variant = EngineVariant(EngineRef.model_validate("roseinfer@x"), variant, "r (x)")
    both = ["r (x)", "r (x, in-process)"]
    assert [entry.label for entry in make_entries([engine_variant])[0]] == (both if offline else both[:1])
    inline = EngineRef(name="roseinfer", variant="y", base="max-batch-4", args=["--no-mixed-steps"])
    assert [entry.served for entry in make_entries([get_engine_variant(inline)])[0]] == [True]
    other = EngineVariant(EngineRef.model_validate("transformers@x"), variant, "t (x)")
    entries, skipped = make_entries([other])
    assert [entry.label for entry in entries] == (["t (x)"] if offline else [])
    assert not skipped or "options of its server" in skipped[0].reason


def _entries() -> list[Entry]:
    return [Entry(get_engine_variant(EngineRef(name=name)), engine) for name, engine in LOCAL.items()]


def test_interleaved_repeats_take_every_engine_before_the_next():
    settings = OfflineSettings(repeats=8)
    entries = _entries()
    planned = list(turns(entries, settings))
    per_repeat = [planned[i : i + len(entries)] for i in range(0, len(planned), len(entries))]
    assert [{repeat for _, repeat in turn} for turn in per_repeat] == [{i} for i in range(8)]
    assert all(Counter(e.engine.name for e, _ in turn) == Counter(LOCAL.keys()) for turn in per_repeat)
    assert len({tuple(e.label for e, _ in turn) for turn in per_repeat}) > 1
    assert [(e.label, r) for e, r in planned] == [(e.label, r) for e, r in turns(entries, settings)]


def test_without_interleaving_an_engine_is_done_before_the_next():
    planned = list(turns(_entries(), OfflineSettings(repeats=2, interleave=False)))
    assert [(entry.engine.name, repeat) for entry, repeat in planned[:3]] == [
        ("roseinfer", 0),
        ("roseinfer", 1),
        ("vllm", 0),
    ]


def test_an_engine_without_an_api_in_process_is_left_out_with_the_reason():
    entries, [skipped] = make_entries([get_engine_variant(EngineRef(name="llamacpp"))])
    assert entries == []
    assert (skipped.label, skipped.reason) == ("llama.cpp", "it has no in-process API here")


def test_an_engine_that_takes_one_length_is_left_out_of_a_mixed_batch():
    """Before it is started, and with what it needs; a batch of one length has it."""
    transformers = get_engine_variant(EngineRef(name="transformers"))
    entries, [skipped] = make_entries([transformers], mixed=True)
    assert not entries and "of one length alone" in skipped.reason and "--output-len" in skipped.hint
    assert [entry.label for entry in make_entries([transformers])[0]] == ["transformers"]
