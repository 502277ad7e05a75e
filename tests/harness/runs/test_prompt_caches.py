"""Servers that were running before: their caches know no prompt of a run, unless it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.compare.compare_runs import compare_runs
from harness.errors import UsageError
from harness.schema.results import OnlineResults
from tests.harness.measured import resume_online, run_online

from .conftest import Make, Watcher, interrupted, journal, report_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag")]

LOAD = {"concurrency": [2], "n": 12, "input_len": 64, "output_len": 4}
Start = Callable[..., str]


@pytest.fixture
def caching(start_mock: Any, tmp_path: Path) -> Start:
    """Starts a server that answers a prompt after 30 ms, and one that it knows after 1 ms."""

    def start(**behaviour: object) -> str:
        script = tmp_path / "script.json"
        script.write_text(json.dumps([{"ttft_ms": 30, "cached_ttft_ms": 1, **behaviour}]))
        return start_mock("--script", str(script)).url

    return start


def ttft(results: OnlineResults) -> list[float]:
    return [summary.ttft_ms.p50 for summary in results.summaries if summary.repeat is not None]


def kinds(results: OnlineResults) -> list[set[str]]:
    wanted = {"cached", "unreported"}
    return [{str(notice.kind) for notice in summary.notices} & wanted for summary in results.summaries]


def test_the_same_command_twice_meets_no_cache(caching: Start, settings_for: Make) -> None:
    url = caching(cached_tokens=0)
    nonces = set()
    for _ in range(2):
        _, results = run_online(settings_for(url, **LOAD), ["bench"], Watcher())
        assert ttft(results)[0] > 25
        assert kinds(results) == [set(), set()]
        nonces.add(results.meta.settings.prompt_nonce)
    assert len(nonces) == 2


def test_the_same_nonce_is_the_same_prompts_and_is_noticed(caching: Start, settings_for: Make) -> None:
    settings = settings_for(caching(cached_tokens=0), prompt_nonce=7, **LOAD)
    _, first = run_online(settings, ["bench"], Watcher())
    folder, second = run_online(settings, ["bench"], Watcher())
    assert ttft(first)[0] > 25
    assert kinds(first) == [set(), set()]
    assert kinds(second) == [{"cached"}, {"cached"}]
    [hits] = second.prefixes
    assert hits.possible == 0 and hits.reported == pytest.approx(63 / 64)
    report_of(folder)
    for file in ("summary.md", "report.html"):
        assert "98 % of the prompt tokens came from a cache" in (folder / file).read_text()


@pytest.mark.parametrize("given", [None, 7])
def test_a_cell_that_is_sent_again_meets_no_cache_unless_the_nonce_was_given(
    caching: Start, settings_for: Make, given: int | None
) -> None:
    settings = settings_for(caching(cached_tokens=0), repeats=2, prompt_nonce=given, **LOAD)
    folder = interrupted(settings)
    nonce = json.loads((folder / "run.json").read_text())["settings"]["prompt_nonce"]
    run_online(settings.model_copy(update={"prompt_nonce": nonce}), ["bench"], Watcher())  # what is left
    _, results = resume_online(folder, Watcher())
    before, again = (entry["prompt_nonce"] for entry in journal(folder))
    assert before is None and results.meta.settings.prompt_nonce == nonce
    if given is None:
        assert min(ttft(results)) > 25 and again not in (None, nonce)
        assert kinds(results)[1] == set()
    else:
        assert kinds(results)[1] == {"cached"} and again is None


def test_a_and_b_of_one_server_have_prompts_of_their_own(caching: Start, settings_for: Make) -> None:
    settings = settings_for(caching(cached_tokens=0), aa=True, repeats=2, **LOAD)
    _, results = run_online(settings, ["bench"], Watcher())
    assert len(ttft(results)) == 4 and min(ttft(results)) > 25
    assert all(not found for found in kinds(results))


def test_a_server_that_reports_nothing(caching: Start, settings_for: Make) -> None:
    _, results = run_online(settings_for(caching(), **LOAD), ["bench"], Watcher())
    assert ttft(results)[0] > 25
    assert kinds(results) == [{"unreported"}, {"unreported"}]


def test_two_served_models_are_not_comparable(start_mock: Any, settings_for: Make) -> None:
    url = start_mock().url
    folders = [
        run_online(settings_for(url, served_model=name, **LOAD), ["bench"], Watcher())[0]
        for name in ("a", "b", "a")
    ]
    [obstacle] = compare_runs(folders[0], folders[1]).obstacles
    assert (obstacle.name, obstacle.allowed) == ("served-model", False)
    assert obstacle.reason == "openai serves a in A, openai serves b in B"
    assert compare_runs(folders[0], folders[2]).obstacles == []
    [obstacle] = compare_runs(folders[0], folders[1], allowed=["served-model"]).obstacles
    assert obstacle.allowed


def test_a_served_name_that_is_no_model(settings_for: Make) -> None:
    with pytest.raises(UsageError) as raised:
        run_online(settings_for("http://127.0.0.1:1", model="./no-such"), ["bench"], Watcher())
    assert raised.value.hint.endswith("a model of the running server is named with --served-model")
