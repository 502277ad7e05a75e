"""Mixtures of clients: shares, burstiness and lengths of each, as its files say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.traces.servegen import Mixture, Shares, TrafficClient, read_mixture
from harness.workload.workload import mixture_requests

#: Two clients: steady with short prompts, and bursty with long ones; both idle at first.
CLIENTS = {
    "a": (["0,0,0,,0,0", "600,3,0.5,Gamma,4,0.08"], {"100": 0.25, "200": 0.75}),
    "b": (["0,0,0,,0,0", "600,1,2.2,Weibull,0.5,0.5"], {"1000": 1.0}),
}


def write(folder: Path) -> Path:
    for name, (rows, lengths) in CLIENTS.items():
        (folder / f"{name}-trace.csv").write_text("\n".join(rows) + "\n")
        text = "{" + ", ".join(f"{tokens}: {share}" for tokens, share in lengths.items()) + "}"
        (folder / f"{name}-dataset.json").write_text(
            json.dumps({"0": {"input_tokens": text, "output_tokens": "{7: 1.0}", "reason_ratio": "{}"}})
        )
    return folder


def test_a_folder_is_read_at_its_busiest_window(tmp_path: Path) -> None:
    mixture = read_mixture(str(write(tmp_path)))
    assert (mixture.start_s, mixture.clients_in_folder, mixture.req_per_s) == (600, 2, 4)
    a, b = mixture.clients
    assert (a.pattern, a.shape, b.pattern, b.shape) == ("Gamma", 4, "Weibull", 0.5)
    assert a.input_tokens.tokens.tolist() == [100, 200] and a.input_tokens.mean == 175
    assert read_mixture(f"{tmp_path}@1199").clients[0].req_per_s == 3


def test_what_cannot_be_drawn_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no clients"):
        read_mixture(str(tmp_path))
    write(tmp_path)
    with pytest.raises(UsageError, match=r"no client of .* was active at 0 s"):
        read_mixture(f"{tmp_path}@10")
    (tmp_path / "a-trace.csv").write_text("0,1,1,Poisson,1,1\n")
    with pytest.raises(UsageError, match="line 1: Invalid enum value 'Poisson'"):
        read_mixture(str(tmp_path))


def test_each_client_keeps_its_share_its_burstiness_and_its_lengths(tmp_path: Path) -> None:
    n, rate = 40_000, 20.0
    trace = mixture_requests(read_mixture(str(write(tmp_path))), rate, seed=5, n=n, seconds=0)
    assert len(trace) == n
    assert (n - 1) / trace.arrival_s[-1] == pytest.approx(rate, rel=0.03)
    long = trace.input_tokens == 1000
    assert long.mean() == pytest.approx(0.25, abs=0.01)
    assert (trace.input_tokens[~long] == 200).mean() == pytest.approx(0.75, abs=0.02)
    for of_client, cv in ((~long, 0.5), (long, np.sqrt(5))):  # Weibull of shape 1/2 has a CV of the root of 5
        gaps = np.diff(trace.arrival_s[of_client])
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


@given(st.integers(0, 2**64 - 1), st.floats(0.1, 100), st.integers(1, 60), st.floats(0, 10))
def test_the_same_seed_gives_the_same_requests(seed: int, rate: float, n: int, seconds: float) -> None:
    some = Shares(np.array([5, 9]), np.array([0.5, 0.5]))
    clients = (
        TrafficClient("a", 2.0, "Gamma", 0.5, some, some),
        TrafficClient("b", 1.0, "Weibull", 0.7, some, some),
    )
    mixture = Mixture("x", 0.0, clients, 2, "")
    first, same = (mixture_requests(mixture, rate, seed, n, seconds) for _ in range(2))
    assert (
        len(first) >= n
        and first.arrival_s[0] == 0
        and first.arrival_s[-1] >= min(seconds, first.arrival_s[-1])
    )
    for column in ("arrival_s", "input_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(first, column), getattr(same, column))


@given(
    st.dictionaries(st.integers(1, 9), st.floats(0.1, 1), min_size=1),
    st.dictionaries(st.integers(1, 9), st.floats(0.1, 1), min_size=1),
    st.integers(1, 20),
)
def test_lengths_within_a_limit_are_as_likely_as_among_all_that_fit(inputs, outputs, most):
    def shares(weights: dict[int, float]) -> Shares:
        items = sorted(weights.items())
        weight = np.array([share for _, share in items])
        return Shares(np.array([tokens for tokens, _ in items]), weight / weight.sum())

    whole = {(i, o): p * q for i, p in inputs.items() for o, q in outputs.items()}
    fitting = {pair: share for pair, share in whole.items() if sum(pair) <= most}
    client = TrafficClient("a", 1.0, "Gamma", 1.0, shares(inputs), shares(outputs))
    mixture = Mixture("x", 0.0, (client,), 1, "")
    if not fitting:
        with pytest.raises(UsageError, match=rf"no request of the 1 clients in x has {most} tokens or fewer"):
            mixture.within(most)
        return
    found = mixture.within(most)
    assert 1 / (1 + found.dropped_each) == pytest.approx(sum(fitting.values()) / sum(whole.values()))
    grid = (np.arange(200) + 0.5) / 200
    drawn_in, drawn_out = found.clients[0].lengths(np.repeat(grid, 200), np.tile(grid, 200))
    for pair, share in whole.items():
        expected = share / sum(fitting.values()) if pair in fitting else 0.0
        seen = np.mean((drawn_in == pair[0]) & (drawn_out == pair[1]))
        assert seen == pytest.approx(expected, abs=0.0 if not expected else 0.011)


def test_a_client_keeps_its_share_whatever_of_it_does_not_fit(tmp_path: Path) -> None:
    """Of `a` a quarter fits 110 tokens. Of `b` nothing fits, so that `a` has its share too."""
    write(tmp_path)
    (tmp_path / "c-trace.csv").write_text("600,1,1,Gamma,1,1\n")
    text = {"0": {"input_tokens": "{50: 1.0}", "output_tokens": "{7: 1.0}"}}
    (tmp_path / "c-dataset.json").write_text(json.dumps(text))
    mixture = read_mixture(str(tmp_path)).within(110)
    assert "2 of 3 clients" in mixture.origin and "1 left out" in mixture.origin
    trace = mixture_requests(mixture, 8.0, seed=3, n=8000, seconds=0)
    assert set(trace.input_tokens.tolist()) == {50, 100}
    assert (trace.input_tokens == 100).mean() == pytest.approx(3 / 4, abs=0.02)
    assert 7999 / trace.arrival_s[-1] == pytest.approx(8.0, rel=0.05)
    gaps = np.diff(trace.arrival_s[trace.input_tokens == 100])
    assert gaps.std() / gaps.mean() == pytest.approx(0.5, rel=0.1)
