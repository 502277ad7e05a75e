"""What would be started and sent, in each engine's own words."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue
from tokenizers import Tokenizer
from transformers import GenerationConfig

from harness.engines import placement
from harness.engines.adapters.sglang import SHIM as SERVE
from harness.engines.adapters.transformers import SHIM
from harness.engines.base import EngineSettings, Installation, Launch, RequestSettings
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.placement import ONE, Parallel
from harness.engines.prompts import text_prompts
from harness.engines.registry import LOCAL, get_engine, get_engine_variant
from harness.engines.selection import select_engines
from harness.engines.selfreport import SelfReport, request_facts
from harness.engines.variants import Variant
from harness.errors import EngineError, UsageError
from harness.models.model_folder import resolve
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import EngineRef
from harness.telemetry import gpu
from harness.workload import PlannedRequest

#: By engine: its package on a GPU; its options for two GPUs, for two replicas (None: it cannot), and for 200
#: requests at a time in half of a GPU's memory.
ENGINES: dict[str, tuple[str, list[str] | None, list[str] | None, list[str]]] = {
    "roseinfer": (
        "rosebench", ["--tensor-parallel-size", "2"], ["--data-parallel-size", "2"],
        ["--max-active-requests", "200", "--gpu-memory-utilization", "0.5"],
    ),
    "vllm": (
        "vllm", ["--tensor-parallel-size", "2"], ["--data-parallel-size", "2"],
        ["--max-num-seqs", "200", "--gpu-memory-utilization", "0.5"],
    ),
    "sglang": (
        "sglang", ["--tp-size", "2"], ["--dp-size", "2"],
        ["--max-running-requests", "200", "--mem-fraction-static", "0.5"],
    ),
    "trtllm": ("tensorrt_llm", ["--tp_size", "2"], None, ["--max_batch_size", "200"]),
    "transformers": ("transformers", None, None, []),
    "lmdeploy": (
        "lmdeploy", ["--tp", "2"], None, ["--max-batch-size", "200", "--cache-max-entry-count", "0.5"],
    ),
    "llamacpp": ("llama-server", ["--split-mode", "row", "--tensor-split", "1,1"], None, []),
}  # fmt: skip
#: By engine: how its launch or its in-process API says the number of threads.
THREADS = {
    "roseinfer": lambda made: int(made.argv[made.argv.index("--threads") + 1]),
    "vllm": lambda made: len(made.env["VLLM_CPU_OMP_THREADS_BIND"].split(",")),
    "sglang": lambda made: int(made.env["OMP_NUM_THREADS"]),
    "transformers": lambda made: int(made.env["OMP_NUM_THREADS"]),
    "llamacpp": lambda made: int(made.argv[made.argv.index("--threads") + 1]),
}
CPUS = (2, 3, 4, 5, 10, 11, 12, 13)
#: Engines that would send the ids of the whole prompt beside those of tokens: these count in each chunk.
COUNTING = {"vllm", "sglang", "openai"}
#: Options that every installed version has, as far as these tests know.
EVERY_OPTION = frozenset(
    {word for _, *options in ENGINES.values() for words in options for word in words or ()}
    | {"--no-cache-prompt", "--max-num-seqs"}
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four GPUs, and cores 0 to 5 with two threads each, of which CPU N + 8 is the second; no program is
    asked what options it has."""
    monkeypatch.setattr(LocalEngine, "flags", lambda self, installation: EVERY_OPTION)
    monkeypatch.setattr(gpu, "count", lambda: 4)
    monkeypatch.setattr(placement, "physical_cores", lambda: [(core, core + 8) for core in range(6)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(6), *range(8, 14)})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))


def settings_of(ref: str, folder: Path, **changes: Any) -> EngineSettings:
    (folder / "model.gguf").touch()
    variant = get_engine_variant(EngineRef.model_validate(ref))
    plain = EngineSettings(variant, folder, "m", device="cpu", dtype="bf16", max_model_len=1024)
    return replace(plain, **changes)


def installed(settings: EngineSettings) -> Installation:
    name = settings.engine_variant.ref.name
    package = "vllm-cpu" if name == "vllm" and settings.device == "cpu" else ENGINES[name][0]
    return Installation(name, "1.2.3", package, Path("/v/bin/python"), "here")


def launch(ref: str, folder: Path, **changes: Any) -> Launch:
    settings = settings_of(ref, folder, **changes)
    return LOCAL[settings.engine_variant.ref.name].server(installed(settings), settings, 8000)


def offline(ref: str, folder: Path, **changes: Any) -> OfflineFactory:
    settings = settings_of(ref, folder, **changes)
    return LOCAL[settings.engine_variant.ref.name].offline(installed(settings), settings)


def with_options(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(LocalEngine, "flags", lambda self, installation: frozenset(options))


def test_vllm_options_follow_the_installed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = launch("vllm", tmp_path, device="cuda")
    assert old.argv[1:4] == ("-m", "vllm.entrypoints.cli.main", "serve")
    assert "--enable-per-request-metrics" not in old.argv
    with_options(monkeypatch, "--enable-per-request-metrics")
    new = launch("vllm", tmp_path)
    assert new.argv[2:4] == ("vllm-cpu", "serve")
    assert new.argv[-1] == "--enable-per-request-metrics"
    assert "VLLM_CPU_KVCACHE_SPACE" in new.env


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_shape_without_weights_is_drawn_by_the_engine(name: str, tmp_path: Path):
    stored, stored_offline = launch(name, tmp_path).argv, offline(name, tmp_path).arguments
    shape = tmp_path / "shape"
    shape.mkdir()
    drawn = launch(name, tmp_path, model=shape).argv
    assert [*drawn[drawn.index("--load-format") :]][:2] == ["--load-format", "dummy"]
    assert "--load-format" not in stored
    assert offline(name, tmp_path, model=shape).arguments["load_format"] == "dummy"
    assert stored_offline.get("load_format", "auto") == "auto"


@pytest.mark.parametrize(("version", "name"), [("0.26.0", "fp8"), ("0.31.0", "fp8_per_tensor")])
def test_a_value_has_the_name_that_the_installed_version_has_for_it(version, name, tmp_path, monkeypatch):
    with_options(monkeypatch, "--quantization")
    settings = settings_of("vllm@fp8", tmp_path, device="cuda")
    made = LOCAL["vllm"].server(replace(installed(settings), version=version), settings, 8000)
    assert made.argv[-2:] == ("--quantization", name)


@pytest.mark.parametrize(("distribution", "device"), [("vllm", "cpu"), ("vllm-cpu", "cuda")])
def test_a_build_of_vllm_for_the_other_device_is_refused(tmp_path: Path, distribution: str, device: str):
    other = Installation("vllm", "1.2.3", distribution, Path("/v/bin/python"), "here")
    with pytest.raises(EngineError, match=f"not for {device}"):
        LOCAL["vllm"].server(other, settings_of("vllm", tmp_path, device=device), 1)


def test_prefix_cache_follows_the_run_and_the_variant(tmp_path: Path):
    assert "--no-enable-prefix-caching" in launch("vllm", tmp_path).argv
    assert "--enable-prefix-caching" in launch("vllm", tmp_path, prefix_cache=True).argv
    assert "--enable-prefix-caching" in launch("vllm@prefix-cache", tmp_path).argv


def test_a_variant_is_laid_over_the_defaults(tmp_path: Path):
    variant = Variant(label="x", args=["--max-num-seqs=4"], env={"DO_NOT_TRACK": "0", "A": "b"})
    plain = get_engine_variant(EngineRef(name="vllm"))
    four = replace(plain, variant=Variant(tensor_parallel_size=4))
    assert (plain.parallelism(ONE), four.parallelism(Parallel(2, 3))) == (ONE, Parallel(4, 3))
    changed = launch("vllm", tmp_path, engine_variant=replace(plain, variant=variant))
    assert changed.argv[-1] == "--max-num-seqs=4"
    assert (changed.env["DO_NOT_TRACK"], changed.env["A"]) == ("0", "b")


def test_a_variant_with_an_option_the_version_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with_options(monkeypatch, "--seed")
    with pytest.raises(UsageError, match=r"vLLM 1\.2\.3 has no option --no-async-scheduling"):
        launch("vllm@no-async-scheduling", tmp_path)


def test_sglang_in_its_own_words(tmp_path: Path):
    argv = launch("sglang", tmp_path, max_concurrency=20).argv
    assert argv[argv.index("--max-total-tokens") + 1] == str(20 * 1024)
    assert "--disable-radix-cache" in argv
    assert "--enable-metrics" in argv
    assert "--enable-metrics" not in launch("sglang@no-metrics", tmp_path).argv
    argv = launch("sglang@prefix-cache", tmp_path, device="cuda", dtype="fp16").argv
    assert argv[argv.index("--dtype") + 1] == "float16"
    assert not {"--disable-radix-cache", "--max-total-tokens", "--attention-backend"} & {*argv}
    factory = offline("sglang", tmp_path)
    assert factory.arguments["disable_radix_cache"] is True
    assert factory.target.endswith("apis.py:Sglang")


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.5.22", ["-m", "sglang.launch_server"]), ("0.5.23", [str(SERVE), "serve", "--model-type", "llm"])],
)
def test_sglang_is_started_as_its_version_wants(version: str, words: list[str], tmp_path: Path):
    settings = settings_of("sglang", tmp_path)
    made = LOCAL["sglang"].server(replace(installed(settings), version=version), settings, 8000)
    assert list(made.argv[1 : 2 + len(words)]) == [*words, "--model-path"]


@pytest.mark.integration
def test_roseinfer_has_every_option_it_is_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    engine = LOCAL["roseinfer"]
    made = engine.server(engine.installed(), settings_of("roseinfer", tmp_path), 8000)
    assert made.argv[0] == sys.executable and "-m roseinfer.cli serve" in " ".join(made.argv)
    assert {word for word in made.argv if word.startswith("--")} <= engine.flags(engine.installed())


@pytest.mark.parametrize("name", ENGINES)
def test_sizes_in_each_engines_own_words(name: str, tmp_path: Path) -> None:
    """Several GPUs, replicas, requests at a time and memory; its in-process API has the same names."""
    _, tensor, data, capacity = ENGINES[name]
    plain = launch(name, tmp_path, device="cuda").argv
    for options, sizes in ((tensor, Parallel(2)), (data, Parallel(1, 2))):
        if options is None:
            with pytest.raises(EngineError, match=r"has no (tensor parallelism|replicas)"):
                launch(name, tmp_path, device="cuda", parallel=sizes)
        else:
            assert launch(name, tmp_path, device="cuda", parallel=sizes).argv == (*plain, *options)
    limits = {"device": "cuda", "max_running_requests": 200, "gpu_memory_utilization": 0.5}
    argv = launch(name, tmp_path, **limits).argv
    assert [word for word in argv if word not in plain and not word.endswith(".yaml")] == capacity
    if capacity:
        arguments = offline(name, tmp_path, parallel=Parallel(2), **limits).arguments
        values = str([*arguments.values()])
        assert "200" in values and "0.5" in values
        assert 2 in [arguments.get(key) for key in ("tensor_parallel_size", "tp_size", "tp")]


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_sees_the_gpus_that_it_computes_on(name, tmp_path, monkeypatch):
    assert launch(name, tmp_path, device="cuda").env["CUDA_VISIBLE_DEVICES"] == "0"
    if ENGINES[name][1]:
        two, four = (launch(name, tmp_path, device="cuda", parallel=Parallel(n)).env for n in (2, 4))
        assert two["CUDA_VISIBLE_DEVICES"] == "0,1" and "CUDA_VISIBLE_DEVICES" not in four
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-5f,2,3")
    assert launch(name, tmp_path, device="cuda").env["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize("name", THREADS)
def test_all_engines_get_the_same_number_of_threads(name: str, tmp_path: Path):
    threads = THREADS[name]
    assert threads(launch(name, tmp_path, cpus=CPUS)) == 3  # of four cores, one is left
    assert threads(launch(name, tmp_path, cpus=CPUS, cpu_threads=2)) == 2
    assert threads(launch(f"{name}@all-cores", tmp_path, cpus=CPUS, cpu_threads=2)) == 4
    on_gpu = launch(name, tmp_path, device="cuda")
    assert "--threads" not in on_gpu.argv
    assert not {"OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & on_gpu.env.keys()
    if name in ("roseinfer", "sglang", "transformers"):
        api = offline(name, tmp_path, cpu_threads=2)
        assert api.arguments.get("threads") == 2 or api.env["OMP_NUM_THREADS"] == "2"


def test_vllm_binds_to_a_cpu_of_each_core_before_their_second_threads(tmp_path: Path):
    bound = [
        launch("vllm", tmp_path, cpus=CPUS, cpu_threads=n).env["VLLM_CPU_OMP_THREADS_BIND"] for n in (3, 4, 6)
    ]
    assert bound == ["2,3,4", "2,3,4,5", "2,3,4,5,10,11"]


def test_processes_on_a_cpu_share_the_threads(tmp_path: Path) -> None:
    two: dict[str, Any] = {"cpu_threads": 6, "parallel": Parallel(2)}
    vllm, sglang = (launch(name, tmp_path, **two).env for name in ("vllm", "sglang"))
    assert vllm["VLLM_CPU_OMP_THREADS_BIND"] == "0,1,2|3,4,5"
    assert (sglang["OMP_NUM_THREADS"], sglang["SGLANG_CPU_OMP_THREADS_BIND"]) == ("3", "0,1,2|3,4,5")
    assert THREADS["roseinfer"](launch("roseinfer", tmp_path, **two)) == 6
    four: dict[str, Any] = {"cpus": CPUS, "cpu_threads": 6, "parallel": Parallel(4)}
    assert launch("sglang", tmp_path, **four).env["SGLANG_CPU_OMP_THREADS_BIND"] == "2|3|4|5"
    with pytest.raises(EngineError, match="over GPUs only"):
        launch("llamacpp", tmp_path, **two)
    with pytest.raises(EngineError, match="computes in 2 processes, and --cpu-threads is 1"):
        launch("roseinfer", tmp_path, cpu_threads=1, parallel=Parallel(2))


@pytest.mark.integration
def test_what_cannot_is_skipped_and_what_can_is_measured() -> None:
    """transformers and roseinfer are in this environment."""
    settings = OnlineSettings.model_validate(
        {"engines": ["roseinfer", "transformers"], "device": "cpu", "tensor_parallel_size": 2}
    )
    chosen = select_engines(settings)
    assert [variant.label for variant in chosen.variants] == ["roseinfer"]
    assert [skip.reason for skip in chosen.missing] == ["transformers has no tensor parallelism"]
    with pytest.raises(UsageError, match=r"none of the engines can be measured: transformers: .* has no"):
        select_engines(settings.model_copy(update={"engines": [EngineRef(name="transformers")]}))


def test_transformers_in_its_own_words(tmp_path: Path):
    """It has room for what is in flight, and is started without its prefix cache by a program of ours."""
    for in_flight, blocks in ((None, 512), (8, 512), (32, 1024), (500, 2048)):
        argv = launch("transformers", tmp_path, max_concurrency=in_flight).argv
        assert argv[argv.index("--cb-num-blocks") + 1] == str(blocks)
    for prefix_cache in (True, False):
        argv = launch("transformers", tmp_path, prefix_cache=prefix_cache).argv
        assert ("transformers.cli.transformers" if prefix_cache else str(SHIM)) in argv
        assert LOCAL["transformers"].facts(SelfReport(argv=argv))["prefix_cache"].value is prefix_cache


def body_of(name: str, ids: list[int], request_settings: RequestSettings) -> dict[str, Any]:
    """Fields of a request for an answer of 9 tokens to the prompt `ids`."""
    encode = get_engine(name).encoder(request_settings)
    body: dict[str, Any] = json.loads(encode(PlannedRequest(0, None, np.array(ids, np.int32), 9)))
    return body


@pytest.mark.parametrize("name", ["roseinfer", "vllm", "sglang", "openai"])
def test_token_ids_are_sent_with_a_fixed_length(name):
    body = body_of(name, [5, 6, 7], RequestSettings(Path(), "gpt2", ignore_eos=True, seed=7))
    assert body["prompt"] == [5, 6, 7]
    assert (body["max_tokens"], body["ignore_eos"]) == (9, True)
    assert "min_tokens" not in body
    assert (body["temperature"], body["seed"], body["stream"]) == (0, 7, True)
    counted = {"include_usage": True} | ({"continuous_usage_stats": True} if name in COUNTING else {})
    assert body["stream_options"] == counted
    assert ("return_token_ids" in body) == (name not in COUNTING)
    assert body_of(name, [5], RequestSettings(Path(), "gpt2", token_ids=True))["return_token_ids"] is True


@pytest.mark.parametrize("name", ["vllm", "sglang", "openai", "llamacpp"])
@pytest.mark.parametrize("token_ids", [True, False])
def test_no_penalty_of_the_model_changes_a_greedy_answer(name: str, token_ids: bool):
    """They would take the one of generation_config.json or the GGUF file where a request has none."""
    field = "repeat_penalty" if name == "llamacpp" else "repetition_penalty"
    assert body_of(name, [5], RequestSettings(Path(), "m", token_ids=token_ids))[field] == 1.0


def test_a_variant_sets_fields_of_requests():
    fields: dict[str, JsonValue] = {"priority": 1, "stream_options": {"include_usage": True}}
    body = body_of("vllm", [5], RequestSettings(Path(), "gpt2", body=fields))
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize("name", ["roseinfer", "vllm", "sglang", "openai", "llamacpp", "trtllm"])
def test_the_user_sets_fields_of_requests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that would draw from fewer tokens by itself draws from all of them, too."""
    monkeypatch.setenv("TEAM", "team-of-a-variable")
    given: dict[str, JsonValue] = {"temperature": 0.5, "seed": None, "user": "env:TEAM"}
    body = body_of(name, [5], RequestSettings(Path(), "gpt2", user_fields=given, body={"priority": 1}))
    assert (body["temperature"], body["user"], body["priority"]) == (0.5, "team-of-a-variable", 1)
    assert "seed" not in body
    assert body.get("top_k") == {"vllm": -1, "sglang": -1, "openai": -1, "llamacpp": 0}.get(name)


@pytest.mark.parametrize(
    ("given", "sampling", "others"),
    [
        ({}, "greedy", "none"),
        ({"temperature": 0.5, "top_k": 9}, "temperature 0.5, top_k 9", "none"),
        ({"temperature": None}, "the server's default", "none"),
        ({"user": "env:TEAM"}, "greedy", '{"user": "env:TEAM"}'),
    ],
)
def test_how_tokens_are_drawn_is_a_setting(given: Any, sampling: str, others: str) -> None:
    asked = RequestSettings(Path(), "gpt2", user_fields=given)
    facts = request_facts(asked, asked)
    assert (facts["sampling"].value, facts["body"].value) == (sampling, others)


@pytest.mark.parametrize("name", ["roseinfer", "vllm", "sglang", "openai"])
def test_text_is_sent_where_it_is_asked_for(name):
    folder = resolve("random:gpt2-tiny").path
    ids = text_prompts(folder).tokens([5, 6, 7])
    text = body_of(name, ids, RequestSettings(folder, "gpt2", text=True))["prompt"]
    assert text == text_prompts(folder).of(ids)
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids == ids


def test_an_end_of_text_may_end_it():
    """Of what extends OpenAI's API only usage in every chunk and no penalty are then asked for."""
    body = body_of("openai", [5], RequestSettings(Path(), "gpt2", ignore_eos=False))
    openai = {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "stream_options"}
    assert body.keys() == openai | {"repetition_penalty"}


def test_transformers_gets_text():
    folder = resolve("random:gpt2-tiny").path
    body = body_of("transformers", [5, 6, 7], RequestSettings(folder, str(folder)))
    assert len(body["prompt"].split()) == 3
    assert json.loads(body["generation_config"])["min_new_tokens"] == 9
    assert not {"ignore_eos", "min_tokens", "stream_options"} & body.keys()


def test_answers_of_transformers_end_on_their_own():
    """Its server reads end tokens from the model's settings, but not where a request brings a whole set."""
    from transformers.cli.serving.completion import CompletionHandler  # half a second to import

    folder = resolve("random:gpt2-tiny").path
    body = body_of("transformers", [5, 6, 7], RequestSettings(folder, str(folder), ignore_eos=False))
    handler = object.__new__(CompletionHandler)
    handler.generation_state = SimpleNamespace(_compile=False)
    models_own = GenerationConfig(eos_token_id=7, do_sample=True, temperature=0.7, repetition_penalty=1.3)
    taken = handler._build_generation_config(body, models_own, use_cb=True)
    assert (taken.eos_token_id, taken.max_new_tokens) == (7, 9)
    assert (taken.do_sample, taken.repetition_penalty) == (False, 1.0)
