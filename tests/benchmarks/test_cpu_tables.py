"""`benchmarks/cpu_tables.py`: the engines and traces that it names exist, and changes have the right sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu_tables
from harness.engines.registry import get_engine_variant
from harness.schema.load import TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Comparison


@pytest.mark.parametrize("what", ["ablations", "peers"])
def test_every_load_is_one_that_bench_online_takes(what: str, tmp_path: Path):
    loads: list[Any] = getattr(cpu_tables, what)(tmp_path)
    for load in loads:
        words = iter(load.asked(2))
        given = {
            word[2:].replace("-", "_"): True if word == "--text-prompts" else next(words) for word in words
        }
        settings = OnlineSettings.model_validate(given)
        labels = [get_engine_variant(ref).label for ref in settings.engines]
        assert labels[0].startswith("roseinfer") and len(labels) == len(set(labels)) > 1
        assert load.seconds(2) == pytest.approx(2 * load.seconds(1))


def test_an_engine_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path):
    words = ["cpu_tables", "peers", "--engines", "roseinfer,nobody", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        cpu_tables.main()
    assert "no nobody; there are roseinfer, vllm" in capsys.readouterr().err


@pytest.mark.parametrize(("a", "b"), [("default", "variant"), ("variant", "default")])
def test_a_change_is_that_of_the_variant(a: str, b: str):
    """The variant has 8 where the default has 10: TPOT is better by a fifth, whichever of both is `a`."""
    of_variant = a == "variant"
    found = Comparison(
        a=a, b=b, load=TraceLoad(scale=1), metric="tpot_ms", statistic="p50",
        value_a=8 if of_variant else 10, value_b=10 if of_variant else 8,
        ratio=0.8 if of_variant else 1.25, ci=(0.5, 0.9) if of_variant else (1 / 0.9, 2.0),
        verdict="better" if of_variant else "worse",
    )  # fmt: skip
    assert cpu_tables.change(found, "variant") == ", -20 % (-50 to -10), better"
