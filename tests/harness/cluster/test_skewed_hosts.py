"""One load from hosts whose clocks differ and drift, over slow links, held against the true times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from harness.cluster.ray_testbed import Offset, host_clock
from harness.records.parquet import read_records
from harness.schema.machines import HostClock
from harness.schema.online_settings import OnlineSettings
from tests.harness.cluster.network import Network, Skew, ray_network
from tests.harness.measured import run_online

pytestmark = pytest.mark.cluster

#: Seconds ahead and gained a second; ms that a packet needs from the host and to it. The last clock is true.
HOSTS = (
    (Skew(0.5, 4e-4), (1.0, 1.0)),
    (Skew(-0.5, -4e-4), (3.0, 9.0)),
    (Skew(0.2, 1e-4), (10.0, 4.0)),
    (Skew(-0.05, -2.5e-4), (20.0, 20.0)),
    (Skew(), (5.0, 5.0)),
)
N, RATE = 400, 40.0
#: Kernel stamps, two clocks that are read one after the other, and sums of floats.
RESOLUTION_MS = 0.06


@pytest.fixture(scope="module")
def hosts(integration: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    pytest.importorskip("ray")
    with ray_network(tmp_path_factory.mktemp("hosts"), [skew for skew, _ in HOSTS]) as made:
        for host, (_, delays) in zip(made.hosts, HOSTS, strict=True):
            made.delay(host, *delays)
        yield made


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Offset, Offset, float, HostClock]]:
    """What was found of the senders' clocks: before and after the cell, its start, and what is stated."""
    found: list[tuple[Offset, Offset, float, HostClock]] = []

    def seen(before: Offset, after: Offset, t0: float) -> HostClock:
        stated = host_clock(before, after, t0)
        found.append((before, after, t0, stated))
        return stated

    monkeypatch.setattr("harness.cluster.ray_testbed.host_clock", seen)
    return found


def test_figures_of_hosts_with_other_clocks_are_within_what_is_stated(hosts, tmp_path, start_mock, clocks):
    mock = start_mock("--host", hosts.own_address, "--ttft-ms", "50", "--itl-ms", "0.1")
    # by its number of tokens the server's log names a request; few are those that ask what the server can do
    lengths = range(100, 100 + N)
    trace = tmp_path / "trace.csv"
    rows = [f"{number / RATE},16,{tokens}" for number, tokens in enumerate(lengths)]
    trace.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    given = {
        "cluster": "auto", "out": tmp_path / "runs", "engines": ["openai"], "model": "auto",
        "tokenizer": "none", "base_url": f"http://{hosts.own_address}:{mock.port}", "max_model_len": 1024,
        "trace": str(trace), "n": N, "warmup": 0, "clients": len(HOSTS),
        "calibrate": False, "check_answers": False,
    }  # fmt: skip
    folder, results = run_online(OnlineSettings.model_validate(given))
    requests = read_records(folder).requests
    [senders] = results.senders.values()
    logged = [(sum(tokens for _, tokens in request.writes), request) for request in mock.served_requests]
    answered = [(tokens, request) for tokens, request in logged if tokens >= lengths.start]
    served = dict(answered)
    assert sorted(served) == [*lengths] and len(answered) == N
    assert requests["error"].isna().all() and sorted(requests["completion_tokens"]) == [*lengths]
    addresses = {host.name: host.address for host in results.meta.hosts}
    by_address = {host.address: place for place, host in enumerate(hosts.hosts)}
    assert len(senders) == len(clocks) == len(HOSTS)
    for sender, (before, after, t0, stated) in zip(senders, clocks, strict=True):
        skew, (there, back) = HOSTS[by_address[addresses[sender.name]]]
        for offset in (before, after):
            true = skew.shown(offset.at) - offset.at
            assert abs(offset.seconds - true) <= offset.bound <= (there + back + 5) / 2e3
        assert abs(stated.drift_ppm - 1e6 * skew.drift) <= stated.drift_bound_ppm
        begin = t0 + before.seconds  # by the node's clock
        early_ms = 1e3 * (skew.true(begin) - t0)
        assert abs(early_ms) <= stated.start_bound_ms
        own = requests[requests["host"] == sender.name]
        assert len(own) == sender.requests == N / len(HOSTS)
        sent, first = (skew.true(begin + own[column].to_numpy()) for column in ("t_sent", "t_first"))
        logs = [served[tokens] for tokens in own["completion_tokens"]]
        on_the_way = 1e3 * (np.array([log.t_received for log in logs]) - sent)
        assert on_the_way.min() >= there - RESOLUTION_MS  # the true moment of each send, by what is stated
        came_back = 1e3 * (first - np.array([log.writes[0][0] for log in logs]))
        assert came_back.min() >= back - RESOLUTION_MS
        ttft_ms = 1e3 * (own["t_first"] - own["t_sent"])
        error_ms = ttft_ms - 1e3 * (first - sent)
        assert (error_ms.abs() <= 1e-6 * (abs(stated.drift_ppm) + stated.drift_bound_ppm) * ttft_ms).all()
        lag = 1e3 * (own["t_sent"] - own["t_sched"])
        known = f"{before.seconds - (skew.shown(before.at) - before.at):+.6f} s ± {stated.bound_ms:.3f} ms"
        known += f", drift {stated.drift_ppm:+.0f} ± {stated.drift_bound_ppm:.0f} ppm"
        began = f"began {early_ms:+.3f} ± {stated.start_bound_ms:.3f} ms"
        seen = f"there {np.median(on_the_way):.2f}, back {np.median(came_back):.2f} ms"
        print(skew.ahead, skew.drift, there, back, "|", known, "|", began, "|", seen, "| TTFT by its clock")
        print(f"    {error_ms.abs().max():.4f} ms wrong; submit lag p99 {np.percentile(lag, 99):.2f} ms")
