"""Presets set what their source says, and give way to what else is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.schema.limits import Slo
from harness.schema.load import ClosedLoop, Ramp, RequestRate, TraceLoad
from harness.schema.loader import build
from harness.schema.online_settings import OnlineSettings
from harness.schema.presets import PRESETS
from harness.schema.setting_types import Uniform
from harness.schema.settings import OfflineSettings


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_says_what_it_set(name: str) -> None:
    kind: Any = {"online": OnlineSettings, "offline": OfflineSettings}[PRESETS[name].command]
    settings = build(kind, None, {"preset": name})
    assert PRESETS[name].source in settings.preset_text
    for key, value in PRESETS[name].values.items():
        assert f"--{key.replace('_', '-')}" in settings.preset_text
        assert str(value) in settings.preset_text or value is True


def test_inferencex_has_its_ladder_and_lengths() -> None:
    settings = build(OnlineSettings, None, {"preset": "inferencex:8k1k"})
    assert settings.loads == [ClosedLoop(concurrency=count) for count in (4, 8, 16, 32, 64)]
    assert [settings.requests(load) for load in settings.loads] == [40, 80, 160, 320, 640]
    assert settings.input_len == Uniform(least=6554, most=8192)
    assert settings.output_len == Uniform(least=820, most=1024)
    assert (settings.warmup, settings.ignore_eos) == (128, True)


@pytest.mark.parametrize(("name", "ttft", "tpot"), [("server", 2000, 100), ("interactive", 500, 30)])
def test_mlperf_has_its_limits(name: str, ttft: int, tpot: int) -> None:
    settings = build(OnlineSettings, None, {"preset": f"mlperf-{name}"})
    assert settings.slo == Slo(ttft_ms=ttft, tpot_ms=tpot)
    assert settings.measured_s == 600


def test_options_and_files_win(tmp_path: Path) -> None:
    file = tmp_path / "bench.yaml"
    file.write_text("preset: inferencex:1k1k\nrounds: 3\nconcurrency: [2]\n")
    settings = build(OnlineSettings, file, {"output_len": "9"})
    assert settings.loads == [ClosedLoop(concurrency=2)]
    assert (settings.rounds, settings.output_len, settings.warmup) == (3, 9, 128)
    assert settings.input_len == Uniform(least=820, most=1024)
    assert "--input-len uniform:820:1024" in settings.preset_text
    assert "--concurrency" not in settings.preset_text and "--output-len" not in settings.preset_text


@pytest.mark.parametrize(
    ("given", "load"),
    [
        ({"request_rate": "2"}, RequestRate(req_per_s=2)),
        ({"ramp": "1:2:3"}, Ramp(from_req_per_s=1, to_req_per_s=2, seconds=3)),
        ({"scales": "2"}, TraceLoad(scale=2)),
    ],
)
@pytest.mark.parametrize("name", ["inferencex:1k1k", "mlperf-server"])
def test_another_kind_of_load_replaces_the_presets(name: str, given: dict[str, str], load: object) -> None:
    settings = build(OnlineSettings, None, {"preset": name} | given)
    assert settings.loads == [load]
    assert [settings.requests(each) for each in settings.loads] == [200]


def test_all_at_once_are_as_many_as_without_a_preset() -> None:
    settings = build(OnlineSettings, None, {"preset": "inferencex:1k1k", "request_rate": "inf"})
    assert settings.loads == [ClosedLoop(concurrency=200)]


def test_real_prompts_replace_the_presets_lengths() -> None:
    settings = build(OnlineSettings, None, {"preset": "inferencex:1k1k", "dataset": "builtin"})
    assert settings.dataset == "builtin" and settings.input_len == 128


def test_a_number_of_requests_replaces_the_presets_rounds() -> None:
    settings = build(OnlineSettings, None, {"preset": "inferencex:1k1k", "concurrency": "2,64", "n": 5})
    assert [settings.requests(load) for load in settings.loads] == [5, 5]


#: A preset with other values is another version of it.
LOCKED: dict[str, tuple[int, str]] = {
    "inferencex:8k1k": (1, "65d4f5ec1876"),
    "inferencex:1k1k": (1, "647c5dba0604"),
    "inferencex:1k8k": (1, "5bda33fd97cf"),
    "mlperf-server": (1, "0c512cac7d09"),
    "mlperf-interactive": (1, "815b422c2b7c"),
    "artificial-analysis": (1, "bbee8d653c93"),
    "agentperf": (1, "a58ac5e127b9"),
    "vllm-dashboard": (1, "45fa3c4660c1"),
    "mini-sglang-offline": (1, "a926cbc52d77"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_with_other_values_has_another_version(name: str) -> None:
    assert LOCKED[name] == (PRESETS[name].version, PRESETS[name].digest)


def test_a_run_conforms_or_says_what_differs() -> None:
    def record(**given: Any) -> Any:
        return build(OnlineSettings, None, {"preset": "artificial-analysis", **given}).preset_record

    assert record().deviations == []
    assert record(repeats="3", engines="vllm").deviations == []
    assert record(concurrency="1,2").deviations == ["--concurrency 1,2"]
    [deviation, *_] = record(request_rate="3").deviations
    assert deviation == "--concurrency not set"
    assert record(sampling="temperature=0.7").deviations[0].startswith("--sampling")
    assert build(OnlineSettings, None, {}).preset_record is None
