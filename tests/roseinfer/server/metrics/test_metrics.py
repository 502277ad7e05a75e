"""Metrics: what clients saw is what is counted, whatever ids, whichever front end served them."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.prometheus import parse_samples, series_values
from roseinfer.config import EngineConfig
from roseinfer.info import DraftCounts, EngineInfo, ModelInfo, RunnerInfo
from roseinfer.ipc.messages import Load
from roseinfer.request.limits import Limits
from roseinfer.request.params import Finished, FinishReason
from roseinfer.server.metrics.counters import Counters, Observer
from roseinfer.server.metrics.exposition import exposition
from roseinfer.server.replicas import together
from tests.roseinfer.server.clients import wait_for


def end(id: int) -> Finished:
    return Finished(id, FinishReason.LENGTH, 0.0, 0.0, 0.0)


def test_a_long_answer_does_not_share_its_times_with_a_later_one() -> None:
    counters = Counters.create(1)
    observer, later = Observer(counters), 1 << 16
    observer.submitted(0, 10, time.monotonic(), 7)
    observer.step(np.array([0]), ())
    observer.submitted(later, 10, time.monotonic(), 7)
    observer.step(np.array([0]), ())
    assert counters.waiting(7) == ((1, 10), (1, 10))
    observer.step(np.array([0, later]), [end(0), end(later)])
    assert counters.waiting(7) == ((0, 0), (0, 0))
    assert sum(counters.histogram("time_to_first_token")[0]) == 2
    assert sum(counters.histogram("inter_token_latency")[0]) == 2


def test_an_answer_that_ends_here_and_in_the_engine_counts_once() -> None:
    """Tokens that are verified together: one completes a stop string, and a later one is the last."""
    counters = Counters.create(1)
    observer = Observer(counters)
    observer.submitted(0, 10, time.monotonic(), 7)
    observer.complete(end(0))
    observer.step(np.array([0, 0, 0]), [end(0)])
    assert (counters.count("requests"), counters.count("discarded")) == (1, 0)


def test_an_answer_that_the_front_end_ends_counts_with_its_last_token() -> None:
    counters = Counters.create(1)
    observer = Observer(counters)
    for id in (0, 1, 2):
        observer.submitted(id, 10, time.monotonic(), 7)
    observer.complete(end(0))
    observer.step(np.array([0, 1]), ())
    observer.step(np.array([0, 1]), ())  # the engine had made one more of the first
    observer.complete(end(1))
    observer.step(np.array([0, 1, 2]), [end(2)])
    assert (counters.count("requests"), counters.count("discarded")) == (3, 0)
    assert counters.waiting(7) == ((0, 0), (0, 0))
    expected = {"time_to_first_token": 3, "inter_token_latency": 2, "queue_wait": 3, "prefill": 3}
    for name, samples in (expected | {"time_per_output_token": 1}).items():
        assert sum(counters.histogram(name)[0]) == samples


def test_tokens_that_come_together_count_each() -> None:
    counters = Counters.create(1)
    observer = Observer(counters)
    for id in (0, 1):
        observer.submitted(id, 10, 0.0, 7)
    observer.step(np.array([0, 1]), ())
    finished = [msgspec.structs.replace(end(id), generation=6.0) for id in (0, 1)]
    observer.step(np.array([0, 0, 0, 1]), finished)
    assert counters.count("generation_tokens") == 6
    assert counters.histogram("inter_token_latency")[0][0] >= 2, "the second and the third came at once"
    assert counters.histogram("time_per_output_token")[1] == 6 / 3 + 6 / 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_drafts_are_counted_as_benchmarks_read_them(replicas: int) -> None:
    config = EngineConfig("m", speculate="ngram")
    info = EngineInfo(config, Limits(9, 9, 32), ModelInfo("fp32", "fp32", False, "x"), RunnerInfo("a", "b"))
    counts = DraftCounts(10, 30, (8, 4, 1))
    load = Load(0, 0, 0.0, 0, 0, 0, drafts=counts)
    counters = Counters.create(1, replicas)
    page = exposition(counters, [load] * replicas, info).decode()
    assert (
        "spec_decode" not in exposition(counters, [msgspec.structs.replace(load, drafts=None)], info).decode()
    )
    assert together([load] * replicas).drafts == DraftCounts(
        10 * replicas, 30 * replicas, (8 * replicas, 4 * replicas, replicas)
    )
    read = Roseinfer().speculation([], parse_samples(page))
    assert read is not None
    assert (read.steps, read.tokens_per_step) == (10 * replicas, 2.3)
    assert read.accepted == pytest.approx(13 / 30) and read.by_position == [0.8, 0.4, 0.1]


def test_a_cost_that_no_step_is_composed_by_has_no_value() -> None:
    config = EngineConfig("m")
    info = EngineInfo(config, Limits(9, 9, 32), ModelInfo("fp32", "fp32", False, "x"), RunnerInfo("a", "b"))
    for errors, mean in (([None, None], None), ([0.25, 0.75], 0.5)):
        loads = [Load(0, 0, 0.0, 0, 0, 0, step_cost_error=error) for error in errors]
        assert together(loads).step_cost_error == mean
        samples = parse_samples(exposition(Counters.create(1, 2), loads, info).decode())
        assert series_values(samples, "roseinfer_step_cost_error") == [each for each in errors if each]


def test_more_answers_at_once_than_there_is_room_for_at_first() -> None:
    counters = Counters.create(1)
    observer, ids = Observer(counters), np.arange(5000)
    for id in ids.tolist():
        observer.submitted(id, 1, time.monotonic(), 0)
    observer.discarded(0)
    observer.step(ids, [])
    observer.step(ids[1:], [end(id) for id in ids[1:].tolist()])
    assert counters.waiting(0) == ((0, 0), (0, 0))
    assert (counters.count("requests"), counters.count("discarded")) == (4999, 1)
    for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token"):
        samples, total = counters.histogram(name)
        assert sum(samples) == 4999 and 0 <= total < 5000 * 60


TOKENS, ANSWERS = 6, 8


def scrape(server: Any) -> dict[str, float]:
    reply = server.request("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(reply.body.decode())
    return {
        sample.name + "".join(f"_{bound}" for bound in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_is_counted(serve: Any) -> None:
    """Metrics of requests, then of a prefix cache, in usage and as a rate, until it is emptied."""
    server = serve(
        "--frontend-processes", "2", "--prefix-cache", "--kv-cache-dtype", "fp8", "--block-size", "8"
    )
    check_description(server)
    for index in range(ANSWERS):
        reply = server.complete([index + 1] * 40, max_tokens=TOKENS, ignore_eos=True, stream=index % 2 == 0)
        assert reply.status == 200
    ended = "roseinfer_time_per_output_token_seconds_count"  # an answer is counted after its last token
    assert wait_for(lambda: scrape(server)[ended] == ANSWERS)
    metrics = scrape(server)
    assert metrics["roseinfer_requests_total"] == ANSWERS
    assert metrics["roseinfer_prompt_tokens_total"] == 40 * ANSWERS
    assert metrics["roseinfer_generation_tokens_total"] == TOKENS * ANSWERS
    for name, samples in {
        "time_to_first_token": ANSWERS,
        "time_per_output_token": ANSWERS,
        "inter_token_latency": ANSWERS * (TOKENS - 1),
        "queue_wait": ANSWERS,
        "prefill": ANSWERS,
    }.items():
        whole = f"roseinfer_{name}_seconds"
        assert metrics[f"{whole}_count"] == metrics[f"{whole}_bucket_+Inf"] == samples
        assert 0 <= metrics[f"{whole}_sum"] < 60
    assert metrics["roseinfer_running"] == metrics["roseinfer_inflight"] == 0
    assert metrics["roseinfer_prefix_hit_rate"] == 0

    prompt = list(range(1, 50))
    text = server.complete(prompt, max_tokens=2, ignore_eos=True).json["choices"][0]["text"]
    assert server.request("/flush_cache", method="POST").status == 200

    def cached(stop: str | None = None) -> int:
        usage = server.complete(prompt, max_tokens=2, ignore_eos=True, stop=stop).json["usage"]
        tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
        return tokens

    assert [cached(), cached()] == [0, 48]
    assert scrape(server)["roseinfer_prefix_hit_rate"] == 48 / 98
    assert cached(stop=text[0]) == 48, "also where the front end ends the answer"
    assert server.becomes_idle(), "what still runs then would be remembered after the cache is emptied"
    assert server.request("/flush_cache", method="POST").status == 200
    assert cached() == 0


def test_answers_that_a_stop_string_ends_are_counted(serving: Any, text_model: Any) -> None:
    assert serving.becomes_idle()
    before, answers = scrape(serving), []
    for place in (0, 8):
        stop = text_model.text(text_model.answer[: place + 1])[-3:]
        reply = serving.complete(text_model.prompt, max_tokens=64, ignore_eos=True, stop=stop)
        assert reply.json["choices"][0]["finish_reason"] == "stop"
        answers.append(reply.json["usage"]["completion_tokens"])
    assert answers[0] == 1 < answers[1]
    total = before["roseinfer_requests_total"] + 2
    assert wait_for(lambda: scrape(serving)["roseinfer_requests_total"] == total)
    risen = {name: value - before.get(name, 0) for name, value in scrape(serving).items()}
    assert risen["roseinfer_discarded_total"] == risen["roseinfer_inflight"] == 0
    for name, samples in {
        "queue_wait": 2,
        "prefill": 2,
        "time_to_first_token": 2,
        "time_per_output_token": 1,
        "inter_token_latency": sum(answers) - 2,
    }.items():
        assert risen[f"roseinfer_{name}_seconds_count"] == samples


def check_description(server: Any) -> None:
    """They describe a cache of 8-bit floats in blocks of 8 tokens."""
    settings = server.request("/server_info").json["settings"]
    assert settings["kv_cache_dtype"] == "float8_e4m3fn"
    (info,) = [
        sample
        for family in text_string_to_metric_families(server.request("/metrics").body.decode())
        for sample in family.samples
        if sample.name == "roseinfer_kv_cache_info"
    ]
    blocks = str(settings["kv_tokens"] // 8)
    assert info.labels == {"dtype": "float8_e4m3fn", "blocks": blocks, "block_size": "8"}


def test_tokenize_time_of_texts(serving: Any) -> None:
    """A request with texts counts once; both its answers report the same time; token ids are not counted."""
    before = scrape(serving)
    texts = ["A text", "and another"]
    reply = serving.complete(texts, max_tokens=2, return_metrics=True)
    first, second = (choice["metrics"]["tokenize_ms"] for choice in reply.json["choices"])
    assert serving.complete([1, 2], max_tokens=2).status == 200
    after, name = scrape(serving), "roseinfer_tokenize_seconds"
    assert first == second > 0
    assert after[f"{name}_count"] - before[f"{name}_count"] == 1
    assert math.isclose(after[f"{name}_sum"] - before[f"{name}_sum"], first / 1e3, abs_tol=1e-9)
