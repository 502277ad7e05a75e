"""What a cell sends, and what warms its server up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.engines.selection import make_engine_variants
from harness.errors import UsageError
from harness.runs.schedule import grid_blocks as plan
from harness.schema.load import ClosedLoop, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.workload import PlannedRequest
from harness.workload.sources import MAX_WARMUP_BATCH, TraceSource
from harness.workload.workload import MAX_STAGGERED, Workload

VOCAB, CONTEXT = 1000, 1024


def workload(context: int = CONTEXT, **settings: Any) -> Workload:
    return Workload.make(OnlineSettings(**settings), VOCAB, context)


def closed(concurrency: int, **settings: Any) -> Workload:
    return workload(concurrency=concurrency, **{"n": 1000, "input_len": 5, "output_len": 3} | settings)


def sizes_met(wave: Sequence[PlannedRequest], rate: int) -> set[int]:
    """Batch sizes of an engine that admits `rate` prompts a step and gives each a token a step."""
    waiting, running, met = [request.output_tokens for request in wave], [], set()
    while waiting or running:
        running, waiting = running + waiting[:rate], waiting[rate:]
        met.add(len(running))
        running = [left - 1 for left in running if left > 1]
    return met


@given(concurrency=st.integers(1, MAX_STAGGERED), rate=st.integers(1, MAX_STAGGERED))
def test_auto_meets_every_batch_size_up_to_the_loads(concurrency: int, rate: int) -> None:
    waves = closed(concurrency).warmup_waves(seed=1)
    assert max(map(len, waves)) == concurrency
    met = set().union(*(sizes_met(wave, rate) for wave in waves))
    assert met >= set(range(1, concurrency + 1))


@settings(max_examples=10)
@given(st.integers(MAX_STAGGERED + 1, 600))
def test_a_large_load_is_reached_without_long_answers(concurrency: int) -> None:
    waves = closed(concurrency).warmup_waves(seed=1)
    assert len(waves[-1]) == concurrency
    assert max(request.output_tokens for wave in waves for request in wave) <= 8 + MAX_STAGGERED


@settings(max_examples=10)
@given(st.integers(1, 200), st.integers(1, 200))
def test_no_more_than_the_load_is_warmed_up(concurrency: int, n: int) -> None:
    load = closed(concurrency, n=n)
    assert load.source.in_flight() == min(concurrency, n)
    assert max(map(len, load.warmup_waves(seed=0))) == min(concurrency, n)


def test_an_open_load_is_as_large_as_its_busiest_moment_at_the_heaviest_scale() -> None:
    light, heavy = workload(scales=[1e9, 1e6]), workload(scales=[100, 0.01])
    assert light.source.in_flight() == 1
    assert heavy.source.in_flight() == MAX_WARMUP_BATCH
    assert len(heavy.warmup_waves(0)[-1]) == MAX_WARMUP_BATCH
    inputs = [len(request.prompt) for request in heavy.warmup_waves(0)[-1]]
    assert isinstance(heavy.source, TraceSource)
    assert set(inputs) <= set(heavy.source.trace.input_tokens.tolist())
    assert inputs == sorted(inputs) and len(set(inputs)) > 5


def test_the_help_says_how_large_a_warm_up_of_a_trace_is_at_most() -> None:
    description = OnlineSettings.model_fields["warmup"].description
    assert description is not None and f"for a trace up to {MAX_WARMUP_BATCH};" in description


@given(context=st.integers(2, 200), concurrency=st.integers(1, 80), share=st.floats(0, 1))
def test_the_warm_up_fits_every_context_that_the_load_fits(context, concurrency, share):
    input_len = max(1, min(context - 1, round(share * context)))
    load = closed(concurrency, context=context, input_len=input_len, output_len=context - input_len)
    for request in (request for wave in load.warmup_waves(0) for request in wave):
        assert len(request.prompt) >= 1 and request.output_tokens >= 1
        assert len(request.prompt) + request.output_tokens <= context


def test_warm_up_prompts_are_in_no_load_and_in_no_other_wave() -> None:
    load = workload(scales=[0.05], n=300, max_output_len=8, fit="clip")
    measured = [tuple(request.prompt[:8]) for request in load.requests(TraceLoad(scale=0.05), 5, 0)]
    warming = [tuple(request.prompt[:8]) for wave in load.warmup_waves(seed=5) for request in wave]
    assert len(set(measured) | set(warming)) == len(measured) + len(warming)


def test_a_number_of_requests_or_what_is_left_of_a_warm_up_for_a_heavier_load() -> None:
    assert [len(wave) for wave in closed(4, warmup=7).warmup_waves(0)] == [7]
    assert closed(4, warmup=0).warmup_waves(0) == []
    assert [len(wave) for wave in closed(512).warmup_waves(0, in_flight=4)] == [1, 2, 4]
    assert [len(wave) for wave in closed(512).warmup_waves(0, in_flight=10, warmed=4)] == [8, 10]
    assert closed(512).warmup_waves(0, in_flight=3, warmed=4) == []
    assert closed(512, warmup=7).warmup_waves(0, in_flight=3, warmed=7) == []


def test_a_cell_is_its_scale_and_its_seed() -> None:
    load = workload(n=20)
    first, same, other = (load.requests(TraceLoad(scale=0.5), seed, 0) for seed in (3, 3, 4))
    assert [a.prompt.tolist() for a in first] == [a.prompt.tolist() for a in same]
    assert all(a.prompt[:8].tolist() != b.prompt[:8].tolist() for a, b in zip(first, other, strict=True))
    slow = load.requests(TraceLoad(scale=2.0), 3, 0)
    assert [a.t_sched_s * 4 for a in first] == pytest.approx([b.t_sched_s for b in slow])


def test_a_closed_loop_is_described() -> None:
    record = closed(4, n=10).source.record
    assert (record.requests, record.input_tokens, record.output_tokens) == (10, 50, 30)
    assert "4 requests in flight" in record.origin
    requests = closed(4, n=2).requests(ClosedLoop(concurrency=4), 0, 0)
    assert [request.t_sched_s for request in requests] == [None, None]


def test_a_closed_loop_has_its_rounds_at_each_level() -> None:
    load = workload(concurrency=[1, 4, 16], n=10, rounds=3, input_len=5, output_len=3)
    assert [len(load.requests(level, 0, 0)) for level in load.source.loads.each] == [10, 12, 48]
    assert load.source.in_flight() == 16
    record, few = load.source.record, closed(16, n=4)
    assert (record.requests, record.input_tokens, record.output_tokens) == (70, 350, 210)
    assert len(few.requests(ClosedLoop(concurrency=16), 0, 0)) == few.source.in_flight() == 4


def test_a_rate_has_its_own_times_and_lengths_whatever_the_prompts() -> None:
    """Of two engines whose prompts differ, as a running server's do, everything else is the same."""
    load = workload(request_rate=[2, 8], n=40, input_len="uniform:5:50", output_len="uniform:1:9")
    light, heavy = load.source.loads.each
    first, second = load.requests(heavy, 1, shape_seed=7), load.requests(heavy, 2, shape_seed=7)
    shapes = [[(r.t_sched_s, len(r.prompt), r.output_tokens) for r in asked] for asked in (first, second)]
    assert shapes[0] == shapes[1]
    assert first[0].prompt.tolist() != second[0].prompt.tolist()
    assert {len(r.prompt) for r in first} <= set(range(5, 51)) and len({len(r.prompt) for r in first}) > 10
    longer = load.requests(light, 1, shape_seed=8)
    assert {len(r.prompt) for r in longer} != {len(r.prompt) for r in first}
    record = load.source.record
    assert record.requests == 80 and "8 requests/s (poisson)" in record.origin
    assert 5 * 80 <= record.input_tokens <= 50 * 80


def test_a_rate_lasts_as_long_as_asked_and_a_ramp_its_own_time() -> None:
    load = workload(request_rate=[10], n=5, settle=3, min_duration=4, input_len=2, output_len=1)
    times = [r.t_sched_s for r in load.requests(load.source.loads.each[0], 0, 0)]
    assert times[-1] >= 7 > times[-2]
    ramp = workload(ramp="5:15:20", arrivals="constant", input_len=2, output_len=1)
    sent = [r.t_sched_s for r in ramp.requests(ramp.source.loads.each[0], 0, 0)]
    assert len(sent) == pytest.approx(200, abs=2) and sent[-1] <= 20
    assert ramp.source.record.requests == len(sent)
    assert ramp.source.in_flight() == pytest.approx(29, abs=2)  # of the last two seconds
    assert ramp.source.tokens_per_s() == ramp.source.requests_per_s() == pytest.approx(10, rel=0.05)


def test_an_open_loop_has_a_rate_of_requests_and_of_tokens() -> None:
    rates = workload(request_rate=[10, 40], arrivals="constant", n=200, input_len=2, output_len=3)
    assert rates.source.requests_per_s() == pytest.approx(40, rel=0.02)
    assert rates.source.tokens_per_s() == pytest.approx(120, rel=0.02)
    assert closed(16).source.requests_per_s() == 0


def test_of_a_trace_as_much_is_taken_as_arrives_while_it_settles_and_is_measured(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},8,4\n" for i in range(60)))
    load = workload(trace=str(trace), scales=[0.5, 2], n=4, settle=3, min_duration=4)
    asked = [load.requests(scale, 0, 0) for scale in load.source.loads.each]
    assert {len(requests): requests[-1].t_sched_s for requests in asked} == {15: 7, 5: 8}


def test_loads_are_planned_for_their_own_seeds() -> None:
    """No load, repeat or seed draws what another one does; engines all draw the same."""
    given = OnlineSettings(request_rate=[1, 2], repeats=2, seed=3, engines="roseinfer,vllm")
    variants = make_engine_variants(given)
    cells = [cell for block in plan(given, variants) for cell in block.cells]
    seeds: dict[tuple[Any, int], set[int]] = {}
    for cell in cells:
        seeds.setdefault((cell.load, cell.repeat), set()).add(cell.shape_seed)
    assert {len(found) for found in seeds.values()} == {1}
    assert len(set().union(*seeds.values())) == len(seeds) == 4


def client(folder: Path, inputs: str) -> str:
    """A mixture of one client with such inputs and outputs of 7 tokens."""
    (folder / "a-trace.csv").write_text("0,3,0.5,Gamma,4,0.08\n")
    lengths = {"0": {"input_tokens": inputs, "output_tokens": "{7: 1.0}"}}
    (folder / "a-dataset.json").write_text(json.dumps(lengths))
    return str(folder)


@pytest.mark.parametrize("fit", ["drop", "clip"])
def test_a_mixture_keeps_its_rate_whatever_does_not_fit(tmp_path: Path, fit: str) -> None:
    mixture = client(tmp_path, "{20: 0.5, 900: 0.5}")
    load = workload(256, request_rate=[4], n=400, mixture=mixture, fit=fit)
    asked = load.requests(load.source.loads.each[0], 0, 0)
    assert len(asked) == 400
    assert asked[-1].t_sched_s == pytest.approx(100, rel=0.1)
    assert {len(r.prompt) for r in asked} == ({20} if fit == "drop" else {20, 240})
    assert load.source.record.dropped == (0 if fit == "clip" else 400)
    assert "1 of 1 clients" in load.source.record.origin


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["drop", "clip", "scale"]), st.integers(1, 500), st.integers(0, 2**64 - 1), st.booleans()
)
def test_a_mixture_sends_as_many_requests_as_asked_for(tmp_path, fit, n, seed, few):
    mixture = client(tmp_path, "{20: 0.02, 30: 0.02, 900: 0.96}" if few else "{20: 0.6, 30: 0.39, 900: 0.01}")
    load = workload(256, request_rate=[4], n=n, mixture=mixture, fit=fit)
    asked, same = (load.requests(load.source.loads.each[0], 0, seed) for _ in range(2))
    assert len(asked) == n == load.source.record.requests
    assert all(len(request.prompt) + request.output_tokens <= 256 for request in asked)
    assert [(r.t_sched_s, len(r.prompt)) for r in asked] == [(r.t_sched_s, len(r.prompt)) for r in same]


@pytest.mark.parametrize("fit", ["drop", "scale"])
def test_a_mixture_lasts_the_time_asked_for(tmp_path: Path, fit: str) -> None:
    mixture = client(tmp_path, str(dict.fromkeys(range(20, 1020, 5), 1 / 200)))
    load = workload(512, request_rate=[20], n=4, settle=10, min_duration=90, mixture=mixture, fit=fit)
    asked = load.requests(load.source.loads.each[0], 0, 0)
    assert load.source.record.dropped > 0
    assert len(asked) == pytest.approx(2000, rel=0.05)
    assert asked[-1].t_sched_s == pytest.approx(100, abs=1)


def test_a_mixture_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no request of the 1 clients in .* has 247 tokens or fewer"):
        workload(256, request_rate=[4], mixture=client(tmp_path, "{900: 1.0}"), fit="drop")


def test_an_infinite_rate_is_a_closed_loop_of_all_and_what_exceeds_the_context_is_refused() -> None:
    assert OnlineSettings(request_rate="inf", n=30).loads == [ClosedLoop(concurrency=30)]
    with pytest.raises(UsageError, match=r"20 \+ 13 tokens exceed the context of 32"):
        closed(1, context=32, input_len=20, output_len=13)


@pytest.mark.parametrize(("vocabulary", "n", "surely"), [(50_257, 10**8, True), (3, 10, False)])
def test_prompts_are_distinct_where_ids_are_many(vocabulary: int, n: int, surely: bool) -> None:
    assert Workload.make(OnlineSettings(concurrency=[4]), vocabulary, 2048).is_distinct(n) is surely
