"""LMDeploy without its wheel: the argument parser, request model and settings of 0.18.0."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.engines.adapters import apis
from harness.engines.base import EngineSettings, Installation, RequestSettings
from harness.engines.registry import LOCAL, get_engine_variant
from harness.engines.selfreport import SelfReport
from harness.errors import EngineError
from harness.models.model_folder import resolve
from harness.schema.setting_types import EngineRef
from harness.workload import PlannedRequest

ENGINE = LOCAL["lmdeploy"]
THERE = Installation("lmdeploy", "0.18.0", "lmdeploy", Path("/v/bin/python"), "here")
#: Options of `lmdeploy serve api_server` that matter here: lmdeploy/cli/serve.py.
OPTIONS = {
    "--server-name", "--server-port", "--backend", "--log-level", "--model-name", "--max-log-len",
    "--generation-config", "--dtype", "--tp", "--session-len", "--max-batch-size", "--cache-max-entry-count",
    "--cache-block-seq-len", "--enable-prefix-caching", "--max-prefill-token-num", "--quant-policy",
    "--model-format", "--disable-metrics", "--dp", "--eager-mode",
}  # fmt: skip
#: Fields of its GenerateReqInput: lmdeploy/serve/openai/protocol.py. Others are ignored in silence.
FIELDS = {
    "session_id", "prompt", "input_ids", "image_data", "return_logprob", "top_logprobs_num",
    "logprob_start_len", "max_tokens", "stop", "stop_token_ids", "stream", "temperature",
    "repetition_penalty",
    "ignore_eos", "top_p", "top_k", "min_p", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output", "return_routed_experts", "repetition_ngram_size",
    "repetition_ngram_threshold", "media_io_kwargs", "mm_processor_kwargs",
}  # fmt: skip
#: What every engine is sent, and this one ignores: it has one model, and draws no tokens when greedy.
IGNORED = {"model", "seed", "stream_options"}
#: Fields that both `TurbomindEngineConfig` and `PytorchEngineConfig` have: lmdeploy/messages.py.
CONFIG = {
    "dtype", "tp", "session_len", "max_batch_size", "cache_max_entry_count", "enable_prefix_caching",
    "quant_policy",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(ENGINE), "flags", lambda self, installation: frozenset(OPTIONS))


def _settings(model: Path, ref: str = "lmdeploy", **changes: Any) -> EngineSettings:
    engine_variant = get_engine_variant(EngineRef.model_validate(ref))
    given: Any = {"device": "cuda", "dtype": "bf16", "max_model_len": 1024} | changes
    return EngineSettings(engine_variant, model, "m", **given)


@pytest.mark.parametrize(
    ("ref", "option"),
    [("lmdeploy", ()), ("lmdeploy@prefix-cache", ("--enable-prefix-caching",)),
     ("lmdeploy@pytorch", ("--backend", "pytorch")), ("lmdeploy@no-metrics", ("--disable-metrics",))],
)  # fmt: skip
def test_the_command_is_one_that_its_parser_takes(tmp_path: Path, ref: str, option: tuple[str, ...]):
    argv = ENGINE.server(THERE, _settings(tmp_path, ref), 8000).argv
    assert argv[:6] == ("/v/bin/python", "-m", "lmdeploy", "serve", "api_server", str(tmp_path))
    assert {word for word in argv if word.startswith("--")} <= OPTIONS
    given = dict(zip(argv[6:16:2], argv[7:16:2], strict=True))
    assert (given["--server-port"], given["--generation-config"], given["--dtype"]) == (
        "8000", "lmdeploy", "bfloat16",
    )  # fmt: skip
    assert argv[len(argv) - len(option) :] == option


@pytest.mark.parametrize("unfit", [{"device": "cpu"}, {"dtype": "fp32"}])
def test_what_it_cannot_is_refused_before_it_starts(tmp_path: Path, unfit: dict[str, str]):
    with pytest.raises(EngineError, match="LMDeploy"):
        ENGINE.server(THERE, _settings(tmp_path, **unfit), 8000)
    with pytest.raises(EngineError, match="LMDeploy"):
        ENGINE.check_offline(settings := _settings(tmp_path, **unfit))
        ENGINE.offline(THERE, settings)


def test_a_request_has_only_fields_that_it_knows(tmp_path: Path):
    assert ENGINE.command(THERE, _settings(tmp_path), 1).path == "/generate"
    folder = resolve("random:gpt2-tiny").path
    asked = PlannedRequest(0, None, np.array([5, 6, 7], np.int32), 9)
    body = json.loads(ENGINE.encoder(RequestSettings(folder, "m"))(asked))
    assert body.keys() <= FIELDS | IGNORED
    assert (body["input_ids"], body["max_tokens"], body["ignore_eos"], body["top_k"]) == (
        [5, 6, 7],
        9,
        True,
        1,
    )
    text = json.loads(ENGINE.encoder(RequestSettings(folder, "m", text=True))(asked))
    assert isinstance(text["prompt"], str) and "input_ids" not in text
    chat = json.loads(ENGINE.encoder(RequestSettings(None, "m", endpoint="chat"))(asked))
    assert "messages" in chat and "input_ids" not in chat
    drawn = RequestSettings(folder, "m", user_fields={"temperature": 0.5})
    body = json.loads(ENGINE.encoder(drawn)(asked))
    assert (body["temperature"], body["top_k"], body["top_p"]) == (0.5, 0, 1.0)


def test_another_back_end_than_asked_for_is_not_measured():
    log = "WARNING - Fallback to pytorch engine because '/m' not supported by turbomind engine.\n"
    with pytest.raises(EngineError, match="not supported by turbomind"):
        ENGINE.facts(SelfReport(log, argv=["--dtype", "bfloat16"]))


def test_a_batch_goes_in_and_out_as_token_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = ENGINE.offline(THERE, _settings(tmp_path, max_running_requests=8, gpu_memory_utilization=0.5))
    assert made.arguments.keys() - {"model"} <= CONFIG

    def infer(requests: Any, multiplex: bool) -> Any:
        for sent in requests:
            first, second = ([token] * sent["gen_config"].max_new_tokens for token in sent["input_ids"])
            yield iter([SimpleNamespace(token_ids=first), SimpleNamespace(token_ids=second)])

    pipe = SimpleNamespace(
        _infer=infer, session=lambda: None, async_engine=SimpleNamespace(backend="turbomind")
    )
    module = ModuleType("lmdeploy")
    vars(module).update(
        TurbomindEngineConfig=SimpleNamespace,
        PytorchEngineConfig=SimpleNamespace,
        GenerationConfig=SimpleNamespace,
        pipeline=lambda model, config: pipe,
    )
    monkeypatch.setitem(sys.modules, "lmdeploy", module)
    arguments: Any = made.arguments
    batch = apis.Lmdeploy(**arguments)
    assert batch.generate([[5, 6], [7, 8]], [1, 2], True) == [[5, 6], [7, 7, 8, 8]]
    with pytest.raises(RuntimeError, match="pytorch"):
        apis.Lmdeploy(backend="pytorch", **arguments)
