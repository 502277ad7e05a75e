"""The scheduler in virtual time, and the benchmark of streams."""

from __future__ import annotations

import itertools
import json
import os
import queue
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from roseinfer.bench import scheduler, streaming
from roseinfer.bench.cost import GPT2_ON_H200, StepTimes
from roseinfer.bench.replay import Arrival, from_trace, replay, uniform
from roseinfer.bench.simulator import VirtualClock
from roseinfer.cli import app
from roseinfer.config import ConfigError, EngineConfig, Prefer
from roseinfer.request.params import Finished, FinishReason, RequestError, SamplingParams
from roseinfer.scheduler.cost import StepCost, fit
from roseinfer.scheduler.scheduler import StepResult
from roseinfer.tokenizer.tokenizer import Tokenizer
from tests.roseinfer.conftest import make_gpt2

ROUND = StepCost(prompts=1.0, prompt_token=0.01, prompt_pair=0, decode=1.0, decode_row=0, decode_context=0)


def arrival(at: float, prompt: int, output: int) -> Arrival:
    return Arrival(at, np.arange(prompt, dtype=np.int32), output)


def simulate(config: EngineConfig, arrivals: list[Arrival], cost: StepCost = ROUND, host: float = 0.0):  # type: ignore[no-untyped-def]
    return scheduler.simulate(config, arrivals, cost, host)


def test_times_are_those_of_the_steps() -> None:
    """A prompt of 100 takes 2 s, each further token 1 s; what comes meanwhile waits for the step's end."""
    config = EngineConfig(prefix_cache=False, overlap_schedule=False)
    done = simulate(config, [arrival(5, 100, 3), arrival(6, 100, 1)]).replayed
    assert done.first.tolist() == [7, 10] and done.last.tolist() == [11, 10]
    assert done.duration == 11


class Drafting:
    """Takes a second for each step; the second has two tokens."""

    launch_at = 0.0

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._steps = clock, [1, 2]

    @property
    def has_work(self) -> bool:
        return len(self._steps) > 0

    def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None: ...

    def step(self) -> StepResult:
        self._clock.wait_until(self._clock.now() + 1)
        tokens = np.zeros(self._steps.pop(0), np.int64)
        return StepResult(tokens, tokens, ())


def test_tokens_of_one_step_have_no_time_between_them() -> None:
    clock = VirtualClock()
    assert replay(Drafting(clock), [arrival(0, 1, 3)], clock).gaps.tolist() == [1, 0]


def test_overlap_hides_the_host() -> None:
    """A second on the host before each step: during the device's second, or before it."""
    requests = [arrival(0, 100, 50)]
    apart = simulate(EngineConfig(prefix_cache=False, overlap_schedule=False), requests, host=1.0).replayed
    beside = simulate(EngineConfig(prefix_cache=False, overlap_schedule=True), requests, host=1.0).replayed
    assert apart.duration == 50 + 2 + 49
    assert beside.duration == pytest.approx(1 + 2 + 49, abs=1)


def test_chunks_let_others_decode_in_between() -> None:
    """While a long prompt is computed, a running request waits for a part of it at a time."""
    requests = [arrival(0, 10, 40), arrival(3, 4000, 2)]
    whole = simulate(EngineConfig(prefix_cache=False, overlap_schedule=False), requests)
    parts = simulate(
        EngineConfig(prefix_cache=False, overlap_schedule=False, chunked_prefill_size=100), requests
    )
    assert max(whole.steps.seconds) > 40 and max(parts.steps.seconds) <= 3.0001


#: Steps of 10 ms, as those of a large model, and the host's part.
LARGE = StepCost(prompts=0.0, prompt_token=0, prompt_pair=0, decode=0.01, decode_row=0, decode_context=0)
HOST = 1e-3


@settings(max_examples=20)
@given(st.lists(st.floats(0.2, 0.9), min_size=1, max_size=8))
def test_with_a_late_launch_who_comes_while_a_step_runs_is_in_the_next(arrivals: list[float]) -> None:
    """Within the launch of the next step, too, nobody waits for more than the step before his own."""
    requests = [arrival(0, 10, 100), *(arrival(at, 10, 5) for at in sorted(arrivals))]
    soon, late = (
        simulate(EngineConfig(prefix_cache=False, mixed_steps=True, late_launch=late), requests, LARGE, HOST)
        for late in (False, True)
    )
    wait = (late.replayed.first - late.replayed.due)[1:]
    assert (wait < 2 * LARGE.decode + 4 * HOST).all()
    assert (late.replayed.first <= soon.replayed.first + HOST).all()
    assert late.replayed.duration <= soon.replayed.duration + HOST
    assert len(late.steps.seconds) <= len(soon.steps.seconds) + 1


def test_a_late_launch_shortens_the_wait_by_most_of_a_step() -> None:
    requests = [arrival(0, 10, 400), *(arrival(1 + 0.0507 * n, 10, 3) for n in range(50))]
    soon, late = (
        simulate(EngineConfig(prefix_cache=False, mixed_steps=True, late_launch=late), requests, LARGE, HOST)
        for late in (False, True)
    )
    waits = [(outcome.replayed.first - outcome.replayed.due)[1:].mean() for outcome in (soon, late)]
    assert waits[1] < waits[0] - LARGE.decode / 2
    assert late.replayed.last[0] == pytest.approx(soon.replayed.last[0], abs=HOST)


CONFIGS = st.builds(
    EngineConfig,
    kv_tokens=st.integers(130, 400),
    max_active_requests=st.integers(1, 12),
    max_batch_size=st.none() | st.integers(1, 12),
    prefill_max_batch_size=st.integers(1, 5),
    prefill_max_tokens=st.integers(1, 200),
    chunked_prefill_size=st.none() | st.integers(1, 60),
    admission_policy=st.sampled_from(["fifo", "pack"]),
    decode_first=st.booleans(),
    prefer=st.sampled_from(get_args(Prefer)),
    target_tpot_ms=st.none() | st.floats(500, 3000),
    target_ttft_ms=st.none() | st.floats(1, 9000),
    prefix_cache=st.booleans(),
    overlap_schedule=st.booleans(),
    late_launch=st.booleans(),
)


@settings(max_examples=10)
@given(config=CONFIGS, seed=st.integers(0, 99), rate=st.floats(0.2, 50))
def test_no_request_starves(config: EngineConfig, seed: int, rate: float) -> None:
    """Under any settings each of fifty requests ends."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, 50))
    requests = [arrival(at, int(rng.integers(1, 90)), int(rng.integers(1, 30))) for at in due]
    done = simulate(config, requests).replayed
    assert sorted(end.id for end in done.finished) == list(range(50))
    assert (done.first > done.due).all() and (done.last >= done.first).all()


def test_thousands_of_requests_in_virtual_time() -> None:
    """An hour of load is simulated in seconds, and its rate is that of the arrivals."""
    requests = uniform(2000, 1.0, 64, 8, seed=1)
    done = simulate(EngineConfig(), requests, GPT2_ON_H200).replayed
    assert done.duration == pytest.approx(requests[-1].at, abs=1)
    assert np.percentile(done.first - done.due, 99) < 0.01


def test_a_cost_is_found_again_from_what_it_costs() -> None:
    rng = np.random.default_rng(0)
    cost = StepCost(5e-4, 4e-7, 2e-10, 4e-4, 4e-6, 1e-9, 2e-4)
    sizes = rng.integers(0, 1500, 60) * rng.integers(0, 2, 60)
    steps = [
        (
            float(n > 0),
            float(n),
            n * (n + 1) / 2,
            1.0,
            float(rows),
            rows * float(rng.integers(1, 900)),
            -float(n > 0),
        )
        for n, rows in zip(sizes, rng.integers(1, 250, 60), strict=True)
    ]
    steps += [(1.0, float(n), n * (n + 1) / 2, 0.0, 0.0, 0.0, 0.0) for n in (50, 700)]
    fitted = fit(steps, [sum(np.array(step) * list(vars(cost).values())) for step in steps])
    assert list(vars(fitted).values()) == pytest.approx(list(vars(cost).values()), rel=1e-3)


def test_traces_are_scaled_and_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n10,7,3\n9,5,2\n14,1,1\n")
    arrivals = from_trace(trace, scale=0.5, count=2, seed=0)
    assert [(a.at, len(a.prompt), a.output) for a in arrivals] == [(0, 5, 2), (0.5, 7, 3)]
    with pytest.raises(ConfigError, match="arrival_s"):
        from_trace(tmp_path / "none.csv", scale=1, count=9, seed=0)


@pytest.mark.parametrize(
    "lines", ["time,in\n1,2", "", "{}", "{}\n1,2", "{}\n1,0,4", "{}\n1,4,0", "{}\nnan,1,1", "{}\n1,2,x"]
)
def test_what_is_no_trace(tmp_path: Path, lines: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(lines.format("arrival_s,input_tokens,output_tokens") + "\n")
    with pytest.raises(ConfigError, match="it needs the columns arrival_s"):
        from_trace(trace, scale=1, count=9, seed=0)


def test_a_request_that_cannot_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv-tokens"):
        simulate(EngineConfig(kv_tokens=64), [arrival(0, 60, 10)])
    simulate(EngineConfig(max_active_requests=1), [arrival(0, 60, 10)])


def test_a_cost_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        scheduler.write_cost(tmp_path / "none" / "cost.json", StepTimes([(1.0,) * 6], [1.0]))


def test_the_command(tmp_path: Path) -> None:
    """Step times are measured on a model with few tokens, then used by the simulation."""
    cost = tmp_path / "cost.json"
    common = ["bench-scheduler", "--num-requests", "6", "--input-len", "20", "--output-len", "4"]
    model = str(make_gpt2(tmp_path, layers=1, width=32, heads=2, vocab=203))
    engine = ["--model", model, "--device", "cpu", "--no-warmup", "--max-model-len", "64"]
    engine += ["--kv-tokens", "512"]
    measured = CliRunner().invoke(app, [*common, *engine, "--fit-cost", str(cost)])
    assert measured.exit_code == 0, measured.output
    assert "Completion tokens (total): 24" in measured.stdout and "TTFT" not in measured.stdout
    simulated = CliRunner().invoke(
        app, [*common, "--simulate", "--cost", str(cost), "--mode", "online", "--request-rate", "100"]
    )
    assert simulated.exit_code == 0, simulated.output
    for line in ("TTFT: mean", "TPOT: mean", "Latency: mean", "Prefill throughput", "Decode throughput"):
        assert line in simulated.stdout


NAMES = [
    "Model", "Device", "Pretok", "Tokenize workers", "Stream interval", "Paged attention", "CUDA Graph",
    "NVTX", "Requests", "Prompt tokens (total)", "Completion tokens (total)", "Submit wall",
    "Submit interval/schedule", "Submit lag", "add_request latency", "Tokenize", "Queue wait (post-tok)",
    "Prefill->first token", "TTFT", "TPOT", "ITL", "Latency", "Throughput (completion,total)",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--warmup-runs", "1", "--repeat-runs", "2", "--tokenize-workers", "2", "--unique-prompts"],
        ["--warmup-runs", "0", "--pretok", "--stream-interval", "3", "--submit-schedule", "relative"],
    ],
)
def test_lines_and_json(text_model: Any, tmp_path: Path, options: list[str]) -> None:
    command = [*_command(text_model), "--submit-interval-ms", "1", *options]
    done = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out.json").read_text())
    cold = "0" in options
    assert list(written) == (["Cold start", "Warm"] if cold else ["Warm"])
    shown = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert [line.partition(":")[0] for line in shown] == NAMES * len(written)
    assert all(list(values) == NAMES for values in written.values())
    warm = written["Warm"]
    runs = 1 if cold else 2
    assert warm["Requests"] == 5 * runs and warm["Completion tokens (total)"] == 35 * runs
    assert warm["TTFT"]["p50"] >= warm["Prefill->first token"]["p50"] > 0
    assert warm["Latency"]["p50"] > warm["TTFT"]["p50"]
    completion, total = shown[-1].split()[-2].split(",")
    assert float(total) > float(completion) > 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_error_of_the_submitting_thread_ends_it(text_model, workers, monkeypatch):
    encode, calls = Tokenizer.encode, itertools.count()

    def fail_third(self: Tokenizer, text: str) -> Any:
        if next(calls) == 2:
            raise ArithmeticError
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode", fail_third)
    done = CliRunner().invoke(app, [*_command(text_model), "--tokenize-workers", workers])
    assert isinstance(done.exception, ArithmeticError)


def test_an_error_of_the_engine_ends_the_submitting_thread(text_model: Any) -> None:
    command = [*_command(text_model), "--max-new-tokens", "100000", "--submit-interval-ms", "3600000"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, RequestError) and "context length" in str(done.exception)


class Late:
    """An engine whose one step is best launched once a second request has come, which does when this is
    asked."""

    def __init__(self, arrived: queue.SimpleQueue[Any], prompt: Any) -> None:
        self._arrived, self._prompt = arrived, prompt
        self.has_work, self.seen = False, list[int]()

    @property
    def launch_at(self) -> float:
        if len(self.seen) != 1:
            return 0.0
        self._arrived.put((1, self._prompt))
        return time.monotonic() + 600

    def add(self, index: int, prompt: Any, params: SamplingParams) -> None:
        self.seen.append(index)
        self.has_work = True

    def step(self) -> StepResult | None:
        if not self.has_work:
            return None
        self.has_work = False
        self._arrived.put(None)
        ends = tuple(Finished(index, FinishReason.LENGTH, 0, 0, 0) for index in self.seen)
        return StepResult(np.array(self.seen), np.array(self.seen), ends)


def test_what_comes_before_the_launch_is_in_it(text_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    prompt = np.ones(3, np.int32)
    arrived.put((0, prompt))
    engine = Late(arrived, prompt)
    monkeypatch.setattr(streaming, "Engine", lambda config: engine)
    load = streaming.StreamingLoad("a", False, True, 0, 2, 1, 1, 0.0, "absolute", False)
    bench = streaming.StreamingBench(EngineConfig(str(text_model.folder)), load)
    timelines = [streaming.Timeline(0.0, 0.0) for _ in range(2)]
    bench.serve(arrived, timelines)
    assert engine.seen == [0, 1] and [len(timeline.shown) for timeline in timelines] == [1, 1]


@pytest.mark.parametrize("option", ["--pretok", "--unique-prompts"])
def test_a_prompt_that_is_not_utf8_is_refused(text_model: Any, option: str) -> None:
    prompt = os.fsdecode(b"caf\xe9")
    done = CliRunner().invoke(app, [*_command(text_model), option, "--prompt", prompt])
    assert isinstance(done.exception, ConfigError) and "not UTF-8" in str(done.exception)


def _command(text_model: Any) -> list[str]:
    command = ["bench-streaming", "--model", str(text_model.folder), "--device", "cpu", "--dtype", "fp32"]
    command += ["--kv-tokens", "4096", "--no-warmup"]
    return [*command, "--num-requests", "5", "--max-new-tokens", "7"]
