"""The adapters against the real engines. A peer that is not installed is skipped with the reason."""

from __future__ import annotations

import http.client
from pathlib import Path

import psutil
import pytest

from harness.engines.base import Asking, EngineSettings, Missing
from harness.engines.registry import LOCAL, contender
from harness.load.plan import LoadPlan, WireRequest
from harness.load.run import run_load
from harness.models import resolve
from harness.offline.run import run_offline
from harness.records.cell import CellIdentity, Expected, read_cell
from harness.spec.settings import EngineRef, OfflineSettings
from harness.workload import closed_loop

PEERS = [pytest.param(name, marks=pytest.mark.peer(name)) for name in ("vllm", "transformers")]
N, INPUT, OUTPUT = 6, 50, 8


def _skip_unless_it_runs(name: str) -> None:
    found = LOCAL[name].find()
    if isinstance(found, Missing):
        pytest.skip(f"{found.reason}; {found.mend}")
    if trouble := LOCAL[name].trouble(found):
        pytest.skip(f"{name} does not run: {trouble}")


@pytest.mark.parametrize("name", PEERS)
def test_serves_what_was_asked_for_and_is_gone(name: str, tmp_path: Path):
    _skip_unless_it_runs(name)
    engine, model = LOCAL[name], resolve("random:gpt2-tiny")
    settings = EngineSettings(
        contender(EngineRef(name=name)), model.path, model.served_name, "cpu", "bf16", model.max_model_len
    )
    planned = closed_loop(N, INPUT, OUTPUT, model.vocab_size, seed=1)
    with engine.open(settings, tmp_path / "server.log") as server:
        encode = engine.encoder(Asking(model.path, server.served_name))
        wire = [WireRequest(r.index, None, encode(r.prompt.tolist(), r.output_tokens)) for r in planned]
        loaded = run_load(LoadPlan(server.target, wire, concurrency=3))
        pids = server.pids
        server.check()
    expected = [Expected(INPUT, OUTPUT)] * N
    identity = CellIdentity(0, name, None, name, 1.0, 0)
    table = read_cell(loaded, expected, identity, exact_length=True).requests
    assert table["error"].isna().all(), table[["error", "error_detail"]].to_string()
    assert (table["completion_tokens"] == OUTPUT).all()
    assert (table["prompt_tokens"] == INPUT).all()
    assert server.record.ready_s > 0
    if name == "vllm":
        assert (table["token_source"] == "token_ids").all()
        assert server.record.settings["prefix_cache"] == "False"
        assert table[["queue_wait_ms", "prefill_ms"]].notna().all(axis=None)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(server.target.host, server.target.port).connect()


@pytest.mark.parametrize("name", PEERS)
def test_offline(name: str, tmp_path: Path):
    _skip_unless_it_runs(name)
    settings = OfflineSettings(
        engines=name, model="random:gpt2-tiny", device="cpu", dtype="bf16", out=tmp_path,
        num_prompts=4, input_len=30, output_len=6,
    )  # fmt: skip
    _, results = run_offline(settings, [], lambda event: None)
    assert results.skipped == []
    assert [row.completion_tokens for row in results.results] == [24]
