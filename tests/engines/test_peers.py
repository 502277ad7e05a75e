"""The adapters against the real engines, where BENCH_PEERS or BENCH_ENGINES names them.

A peer that is not there, or not asked for, is skipped with the reason: each takes up to a minute to start.
"""

from __future__ import annotations

import http.client
import os
from pathlib import Path

import psutil
import pytest

from harness.engines.base import EngineSettings, Missing, RequestSettings
from harness.engines.process.engine_server import EngineServer
from harness.engines.registry import LOCAL, get_engine_variant
from harness.errors import EngineError
from harness.loadgen.load_plan import LoadPlan, WireRequest
from harness.loadgen.run_load import run_load
from harness.models.model_folder import ModelFolder, resolve
from harness.records.cell import CellIdentity, Expected
from harness.schema.load import ClosedLoop
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import EngineName, EngineRef
from harness.schema.settings import OfflineSettings
from harness.workload import warmup
from tests.harness.measured import read_cell, run_online

#: By engine, how its tokens are counted.
COUNTED = {
    "vllm": "continuous_usage",
    "sglang": "continuous_usage",
    "transformers": "final_usage",
    "llamacpp": "final_usage",
}
PEERS = [pytest.param(name, marks=pytest.mark.peer(name)) for name in COUNTED]
#: By engine, what the process that computes calls itself.
CORES = {"vllm": "EngineCore", "sglang": "sglang::scheduler", "llamacpp": "llama-server"}
#: By engine, the times that it reports of each request.
REPORTED_TIMES = {"vllm": ["queue_wait_ms", "prefill_ms"], "llamacpp": ["prefill_ms"]}
N, INPUT, OUTPUT = 6, 50, 8


def _skip_unless_it_runs(name: EngineName) -> None:
    if not {"BENCH_PEERS", "BENCH_ENGINES"} & os.environ.keys():
        pytest.skip("neither BENCH_PEERS nor BENCH_ENGINES names real engines")
    installation = LOCAL[name].find()
    if isinstance(installation, Missing):
        pytest.skip(f"{installation.reason}; {installation.hint}")
    if trouble := LOCAL[name].trouble(installation):
        pytest.skip(f"{name} does not run: {trouble}")


def _settings(name: EngineName, model: ModelFolder) -> EngineSettings:
    engine_variant = get_engine_variant(EngineRef(name=name))
    return EngineSettings(engine_variant, model.path, model.served_name, "cpu", "bf16", model.max_model_len)


@pytest.mark.parametrize("name", PEERS)
def test_serves_what_was_asked_for_and_is_gone(name: EngineName, tmp_path: Path):
    _skip_unless_it_runs(name)
    engine, model = LOCAL[name], resolve("random:gpt2-tiny")
    settings = _settings(name, model)
    planned = warmup([(INPUT, OUTPUT)] * N, model.vocab_size, seed=1)
    with engine.open(settings, tmp_path / "server.log") as server:
        encode = engine.encoder(RequestSettings(model.path, server.served_name))
        wire = [WireRequest(r.index, None, encode(r)) for r in planned]
        loaded = run_load(LoadPlan(server.target, wire, concurrency=3))
        assert isinstance(server, EngineServer)
        pids = server.pids
        server.check()
    expected = [Expected(INPUT, OUTPUT)] * N
    identity = CellIdentity(0, name, None, name, ClosedLoop(concurrency=3), 0)
    table = read_cell(loaded, expected, identity).requests
    assert table["error"].isna().all(), table[["error", "error_detail"]].to_string()
    assert (table["completion_tokens"] == OUTPUT).all()
    assert (table["prompt_tokens"] == INPUT).all()
    assert server.record.ready_s > 0
    inferred = {"inferred"} if COUNTED[name] == "final_usage" else set()  # where a token shows no text
    assert {*table["token_source"]} - inferred == {COUNTED[name]}
    assert server.record.facts["prefix_cache"].value is False
    assert table[REPORTED_TIMES.get(name, [])].notna().all(axis=None)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(server.target.host, server.target.port).connect()


@pytest.mark.parametrize("name", [peer for peer in PEERS if peer.values[0] in CORES])
def test_its_core_is_killed(name: EngineName, tmp_path: Path):
    """The server ends by itself, which is noticed, and nothing of it is left."""
    _skip_unless_it_runs(name)
    settings = _settings(name, resolve("random:gpt2-tiny"))
    pids: list[int] = []
    with (
        pytest.raises(EngineError, match="ended while it was in use"),
        LOCAL[name].open(settings, tmp_path / "server.log") as server,
    ):
        assert isinstance(server, EngineServer)
        pids += server.pids
        family = [psutil.Process(pid) for pid in pids]
        core = next(process for process in family if CORES[name] in " ".join(process.cmdline()))
        first = next(process for process in family if process.ppid() not in pids)
        core.kill()
        psutil.wait_procs([first], timeout=120)
        server.check()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.parametrize("name", [peer for peer in PEERS if peer.values[0] != "llamacpp"])
def test_offline(name: EngineName, tmp_path: Path):
    _skip_unless_it_runs(name)
    settings = OfflineSettings(
        engines=name, model="random:gpt2-tiny", device="cpu", dtype="bf16", out=tmp_path,
        num_prompts=4, input_len=30, output_len=6,
    )  # fmt: skip
    _, results = run_online(OnlineSettings.of_batch(settings), [], lambda event: None)
    assert results.skipped == []
    assert [row.completion_tokens for row in results.results] == [24]
