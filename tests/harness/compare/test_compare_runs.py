"""Two runs, from their folders to the exit code."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from harness.cli.commands import app
from harness.compare.comparable import alike
from harness.compare.compare_runs import compare_runs
from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.fairness.answer_check import Replies
from harness.history.store import alike_hash
from harness.runs.folder import ANSWERS, JOURNAL, RUN, SKIPPED
from harness.runs.journal import JournalEntry, append_journal
from harness.schema.compare_results import CompareResults
from harness.schema.facts import Fact
from harness.schema.fairness import AnswerCheck, AnswerChecks
from harness.schema.limits import parse_gate
from harness.schema.load import ClosedLoop, TraceLoad
from harness.schema.machines import MachineLoad
from harness.schema.results import Skipped
from harness.schema.search import SearchPlan

GATE = "ttft_p99<=+10%, output_tok_per_s>=-3%"


def bench(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def by_statistic(results):
    return {
        (difference.load.value, difference.metric, difference.statistic): difference
        for difference in results.differences
    }


def test_alike_runs_pass_and_show_no_difference(make):
    a, b = make("a", repeats=5), make("b", repeats=5)
    results = compare_runs(a, b, parse_gate(GATE))
    assert results.outcome == "pass"
    assert results.comparisons == len(results.differences) == 13
    assert {difference.verdict for difference in results.differences} == {"no difference"}
    found = bench(a, b, "--gate", GATE)
    assert found.exit_code == 0
    assert "verdict: pass" in found.stdout


def test_verdicts_hold_for_all_engines_and_loads_together(make):
    both = {"repeats": 3, "engines": ("roseinfer", "vllm"), "scales": (1.0, 2.0)}
    a, b = make("a", **both), make("b", slower=1.04, spread=0.02, **both)
    together = compare_runs(a, b)
    alone = {label: compare_runs(a, b, engine_a=label) for label in ("roseinfer", "vLLM")}
    assert together.comparisons == len(together.differences) == 52
    assert [alone[label].comparisons for label in alone] == [26, 26]
    pairs = [
        (
            joint,
            next(d for d in alone[joint.engine_a].differences if (d.load, d.metric, d.statistic) == place),
        )
        for joint in together.differences
        for place in [(joint.load, joint.metric, joint.statistic)]
    ]
    assert all(joint.adjusted_p >= other.adjusted_p for joint, other in pairs)
    smallest, before = min(pairs, key=lambda pair: pair[0].adjusted_p)
    assert smallest.adjusted_p == pytest.approx(52 / 26 * before.adjusted_p)  # Holm's first step


@pytest.mark.parametrize("setting", [{"max_output_len": 64}, {"turns": "live"}, {"max_think_s": 0.0}])
def test_runs_that_cut_a_dataset_otherwise_are_not_comparable(make, setting):
    of_both = {"concurrency": [4], "dataset": "builtin", "max_output_len": 8, "turns": "recorded"}
    a, b = make("a", **of_both), make("b", **of_both | setting)
    assert [obstacle.name for obstacle in compare_runs(a, b).obstacles] == ["lengths"]


@pytest.mark.parametrize(
    ("fact", "of_a", "of_b", "name", "reason"),
    [
        (
            "answers",
            "at the length asked for",
            "on their own",
            "lengths",
            "answers of vLLM in A end at the length asked for, those of vLLM in B on their own",
        ),
        (
            "prompts",
            "token ids",
            "text, counted by the tokenizer",
            "prompts",
            "prompts of vLLM in A are sent as token ids, those of vLLM in B as text",
        ),
    ],
)
def test_requests_that_a_server_takes_otherwise_are_not_comparable(make_own, fact, of_a, of_b, name, reason):
    def taking(folder_name, value):
        found = {} if value is None else {fact: {"value": value, "source": "found by asking"}}
        folder = make_own(folder_name)
        info = json.loads((folder / RUN).read_text())
        launch = {"engine": "vllm", "label": "vLLM", "facts": found}
        (folder / RUN).write_text(json.dumps(info | {"launches": [launch]}))
        return folder

    a, b, unknown = map(taking, "abc", (of_a, of_b, None))
    [obstacle] = compare_runs(a, b).obstacles
    assert (obstacle.name, obstacle.reason) == (name, reason)
    assert compare_runs(a, b, allowed=[name]).outcome == "no gate"
    assert compare_runs(a, unknown).obstacles == compare_runs(b, unknown).obstacles == []


def test_texts_of_other_lengths_are_prompts_of_one_kind(make_own):
    """What differs is how they are counted."""
    folders = [make_own(name) for name in "ab"]
    ways = ("text, counted by the tokenizer", "text, of a length that the server's usage tells")
    for folder, way in zip(folders, ways, strict=True):
        facts = {"prompts": {"value": way, "source": "found by asking"}}
        info = json.loads((folder / RUN).read_text())
        info["launches"] = [{"engine": "vllm", "label": "vLLM", "facts": facts}]
        (folder / RUN).write_text(json.dumps(info))
    assert compare_runs(*folders).obstacles == []


@pytest.mark.parametrize(("counted", "named"), [(7, ["lengths"]), (9, [])])
def test_prompts_or_answers_of_other_lengths_are_not_comparable(make, make_own, counted, named):
    """The server's count of 10 tokens that were planned."""
    a, b = make("a"), make_own("b")
    table = pq.read_table(b / "requests.parquet")
    column = pa.array([counted] * len(table), table.schema.field("prompt_tokens").type)
    place = table.schema.get_field_index("prompt_tokens")
    pq.write_table(table.set_column(place, table.schema.field(place), column), b / "requests.parquet")
    obstacles = compare_runs(a, b).obstacles
    assert [obstacle.name for obstacle in obstacles] == named
    reasons = ["prompts of vLLM in A have 10 tokens in the mean, those of vLLM in B 7 (scale 1)"]
    assert [obstacle.reason for obstacle in obstacles] == reasons[: len(named)]
    assert compare_runs(a, b, allowed=["lengths"]).outcome == "no gate"


CPU = {"model": "another", "usable_cores": 2}


@pytest.mark.parametrize(
    ("of_a", "of_b", "name", "reason"),
    [
        ({}, {"min_duration": 8.0}, "duration", "min-duration: not set in A, 8.0 in B"),
        (
            {"environment": {"cpu": CPU}},
            {"environment": {"cpu": CPU, "gpus": [{"name": "G"}]}, "device": "cuda"},
            "hardware",
            "device: cpu in A, cuda in B; GPUs: none in A, G in B",
        ),
    ],
)
def test_only_settings_and_parts_that_differ_are_named(make, of_a, of_b, name, reason):
    obstacles = compare_runs(make("a", **of_a), make("b", **of_b)).obstacles
    assert [it.reason for it in obstacles if it.name == name] == [f"{name} differs: {reason}"]


def test_a_slower_run_is_a_regression(make):
    a, b = make("a", repeats=4), make("b", repeats=4, slower=1.3)
    results = compare_runs(a, b, parse_gate(GATE))
    ttft = by_statistic(results)[1.0, "ttft_ms", "p50"]
    assert ttft.verdict == "worse"
    assert ttft.ratio == pytest.approx(ttft.value_b / ttft.value_a, rel=0.02) == pytest.approx(1.3, rel=0.05)
    assert ttft.difference == pytest.approx(ttft.value_b - ttft.value_a, rel=0.05)
    assert ttft.ratio_ci[0] < 1.3 < ttft.ratio_ci[1]
    assert ttft.difference_ci[0] < ttft.difference < ttft.difference_ci[1]
    assert [gated.outcome for gated in results.gates] == ["regression", "pass"]
    assert bench(a, b, "--gate", GATE).exit_code == 1
    assert bench(b, a, "--gate", GATE).exit_code == 0


def test_what_repeats_hide_is_inconclusive_and_says_how_many_it_needs(make):
    a, b = make("a", spread=0.08), make("b", spread=0.08)
    results = compare_runs(a, b, parse_gate("tpot_p50<=+10%"))
    [gated] = results.gates
    assert gated.outcome == results.outcome == "inconclusive"
    assert gated.needed_repeats > 3
    assert f"about {gated.needed_repeats} repeats" in gated.reason
    found = bench(a, b, "--gate", "tpot_p50<=+10%")
    assert found.exit_code == 2
    assert "verdict: inconclusive" in found.stdout
    assert not found.stderr


def test_one_repeat_decides_only_what_is_plain(make):
    a, b, slow = make("a", repeats=1), make("b", repeats=1), make("slow", repeats=1, slower=5)
    [close] = compare_runs(a, b, parse_gate("tpot_p50<=+10%")).gates
    assert close.outcome == "inconclusive"
    assert "measure 2 or more" in close.reason
    assert compare_runs(a, slow, parse_gate("tpot_p50<=+10%")).outcome == "regression"


def test_a_withheld_percentile_says_how_many_requests_it_needs(make):
    a, b = make("a", n=30), make("b", n=30)
    results = compare_runs(a, b, parse_gate("ttft_p99<=+10%"))
    assert results.outcome == "inconclusive"
    assert results.gates[0].reason == "p99 has no interval: each repeat needs 70 more requests"
    found = by_statistic(results)[1.0, "ttft_ms", "p99"]
    assert (found.verdict, found.ratio_ci, found.missing_samples) == ("not enough data", None, 70)
    assert "needs 70 more requests" in bench(a, b).stdout


def test_no_goodput_any_more_is_a_regression(make):
    a, b = make("a", slo="ttft_ms=100"), make("b", slo="ttft_ms=100", slower=100)
    results = compare_runs(a, b, parse_gate("goodput_req_per_s>=-3%"))
    assert [(gated.value, gated.outcome) for gated in results.gates] == [(0, "regression")]


def test_an_absolute_gate_needs_nothing_of_a(make):
    a, b = make("a", slo="ttft_ms=100", slower=100), make("b", slo="ttft_ms=100")
    assert compare_runs(a, b, parse_gate("goodput_req_per_s>=1")).outcome == "pass"
    assert compare_runs(a, b, parse_gate("ttft_p50<=60ms, req_per_s>=5")).outcome == "pass"
    assert compare_runs(a, b, parse_gate("ttft_p50<=0.04s")).outcome == "regression"
    few, b = make("few", n=30, repeats=1), make("c", spread=0.1, repeats=5)
    [gated] = compare_runs(few, b, parse_gate("ttft_p99<=65ms"), allowed=["requests"]).gates
    assert gated.outcome == "inconclusive" and gated.ci[0] < 65 < gated.ci[1]
    assert gated.reason.startswith("the interval contains the limit; about ")
    assert gated.reason.endswith(" repeats of B would decide")


def test_failures_make_runs_incomparable_and_can_be_limited_when_allowed(make):
    a, b = make("a"), make("b", failed=30)
    refused = bench(a, b, "--gate", "error_rate<=1%")
    assert refused.exit_code == 3
    assert (
        "not comparable (invalid): B: vLLM, scale 1, repeat 1: failures (failed 30, requests 120)"
        in refused.stdout
    )
    hint = "  hint: measure the invalid cells again, or use --allow-different invalid\n"
    assert refused.stdout.endswith(hint)
    assert bench(a, b, "--gate", "error_rate<=1%", "--allow-different", "invalid").exit_code == 1
    assert bench(a, b, "--gate", "error_rate<=40%", "--allow-different", "invalid").exit_code == 0


def test_repeats_that_a_server_did_not_outlive_are_no_pass(make, make_own):
    a, b = make("a", repeats=4), make_own("b", repeats=4, lost=(1, 3))
    died = Skipped(engine="vllm", label="vLLM", load=TraceLoad(scale=1), repeat=1, reason="it died")
    (b / SKIPPED).write_text(f"[{died.model_dump_json()}]")
    refused = bench(a, b, "--gate", "ttft_p50<=+50%", "--allow-different", "invalid")
    assert refused.exit_code == 3
    assert "not comparable (repeats): B: vLLM, scale 1, repeat 2: not measured: it died" in refused.stdout
    assert "vLLM, scale 1, repeat 4: not measured yet: the run ended before it" in refused.stdout
    hint = "  hint: measure the missing repeats with --resume, or use --allow-different repeats\n"
    assert refused.stdout.endswith(hint)
    assert compare_runs(a, b, parse_gate("ttft_p50<=+50%"), allowed=["repeats"]).outcome == "pass"


def test_a_search_lacks_no_repeats(make, make_own):
    a, b = make("a", repeats=4), make_own("b", repeats=4, lost=(3,))
    plan = SearchPlan.make("rate", "ttft_p99<=1s")
    info = json.loads((b / RUN).read_text())
    (b / RUN).write_text(json.dumps(info | {"search": plan.model_dump(mode="json")}))
    assert compare_runs(a, b).obstacles == []


def test_equal_labels_of_two_tunings_are_not_the_same_configuration(make_own):
    a, b = make_own("a"), make_own("b")
    for run, batch in ((a, 2), (b, 4)):
        drawn = {"label": "vLLM", "variant": "c1", "settings": {"--max-num-seqs": batch}}
        space = {"engine": "vllm", "args": {"--max-num-seqs": [2, 4]}}
        plan = {"engine": "vllm", "space": space, "configurations": [drawn], "objective": "tpot_p50"}
        info = json.loads((run / RUN).read_text())
        (run / RUN).write_text(json.dumps(info | {"tune": plan}))
    results = compare_runs(a, b)
    assert [(found.name, "--max-num-seqs" in found.reason) for found in results.obstacles] == [
        ("configuration", True)
    ]
    assert results.outcome == "not comparable"
    assert compare_runs(a, b, allowed=["configuration"]).differences
    assert alike_hash(StoredRun.read(a)) != alike_hash(StoredRun.read(b))


@pytest.mark.parametrize("scales", [(1.0,), (1.0, 2.0)])
def test_gates_are_judged_where_nothing_succeeded(make, scales):
    a, b = make("a", scales=scales, n=30), make("b", scales=scales, n=30, failed={1.0: 30})
    results = compare_runs(a, b, parse_gate("error_rate<=10%, tpot_p50<=+10%"), allowed=["invalid"])
    assert results.outcome == "regression"
    found = {(gated.load.value, gated.gate): gated.outcome for gated in results.gates}
    assert (found[1.0, "error_rate<=10%"], found[1.0, "tpot_p50<=+10%"]) == ("regression", "inconclusive")
    assert len(found) == 2 * len(scales)
    [alone, *_] = compare_runs(a, b, parse_gate("tpot_p50<=+10%"), allowed=["invalid"]).gates
    assert alone.reason == "A or B has no such value, or A's is 0"
    assert bench(a, b, "--gate", "tpot_p50<=+10%", "--allow-different", "invalid").exit_code == 2


def test_nothing_allows_runs_without_a_load_in_common(make):
    a, b = make("a"), make("b", scales=(2.0,))
    results = compare_runs(a, b, parse_gate("error_rate<=1%"), allowed=["scales"])
    assert (results.outcome, results.gates) == ("not comparable", [])
    assert [obstacle.name for obstacle in results.obstacles if not obstacle.allowed] == ["loads"]


def test_no_failures_are_not_proof_of_none(make):
    a, b = make("a", n=50), make("b", n=50)
    [gated] = compare_runs(a, b, parse_gate("error_rate<=1%")).gates
    assert (gated.value, gated.outcome) == (0, "inconclusive")
    assert gated.ci[1] == pytest.approx(1 - 0.025 ** (1 / 150))


def test_an_engine_that_answers_wrongly_is_not_comparable(make, make_own):
    a, b = make("a"), make_own("b", slower=0.5)
    reason = Fact(kind="wrong_answers", values={"wrong": 1, "answers": 6})
    check = AnswerCheck(engine="vllm", label="vLLM", verdict="wrong", reason=reason, answers=[])
    judged = AnswerChecks(rule="as expected", reference="transformers", checks=[check])
    (b / ANSWERS).write_text(Replies(prompts=[], judged=judged).model_dump_json())
    results = compare_runs(a, b, parse_gate("ttft_p50<=+10%"))
    assert results.outcome == "not comparable" and not results.differences
    assert [obstacle.reason for obstacle in results.obstacles] == [f"B: vLLM: {reason}"]
    assert compare_runs(a, b, parse_gate("ttft_p50<=+10%"), allowed=["invalid"]).outcome == "pass"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("model", {"model": "other"}),
        ("dtype", {"dtype": "fp32"}),
        ("hardware", {"environment": {"cpu": {"model": "another", "usable_cores": 2}}}),
        ("trace", {"trace": {"sha256": "0" * 64}}),
        ("fit", {"trace": {"fit": "clip"}}),
        ("lengths", {"trace": {"output_tokens": 7}}),
        ("requests", {"n": 130}),
        ("scales", {"scales": (1.0, 2.0)}),
        ("engines", {"engines": ("vllm", "roseinfer")}),
        ("prefix-cache", {"prefix_cache": True}),
        ("prompts", {"text_prompts": True}),
        ("window", {"steady_state": True}),
        ("cpu-threads", {"cpu_threads": 2}),
        ("tensor-parallel-size", {"tensor_parallel_size": 2}),
        ("data-parallel-size", {"data_parallel_size": 2}),
        ("max-running-requests", {"max_running_requests": 2}),
    ],
)
def test_what_differs_is_named_and_can_be_allowed(make, name, change):
    a, b = make("a", repeats=2), make("b", repeats=2, **change)
    if name in ("engines", "model"):
        found = bench(a, b)
        assert found.exit_code == 3
        assert f"not comparable ({name}): " in found.stdout and f"--allow-different {name}" in found.stdout
        assert ("--engine-a" in found.stdout) == (name == "engines")
    results = compare_runs(a, b)
    assert results.outcome == "not comparable"
    assert not results.differences
    assert [obstacle.name for obstacle in results.obstacles] == [name]
    allowed = compare_runs(a, b, allowed=[name])
    assert allowed.outcome == "no gate"
    assert {difference.load.value for difference in allowed.differences} == {1.0}


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("sampling", {"sampling": {"temperature": 1.0}}),
        ("body", {"body": {"logit_bias": {"5": 100}}}),
        ("shared-prefixes", {"shared_prefixes": "groups=2,share=60%", "input_len": 512}),
        ("same-prompts", {"dataset": "builtin", "same_prompts": True}),
        ("content-field", {"content_field": ["thinking"], "endpoint": "chat"}),
    ],
)
def test_what_changes_the_work_is_an_obstacle_where_one_run_has_it(make, name, setting):
    """Kept histories have the hash of what is set, so nothing is added to that of other runs."""
    [key] = [key for key in setting if key.replace("_", "-") == name]
    of_both = {"concurrency": [4]} | {other: value for other, value in setting.items() if other != key}
    a, b = make("a", **of_both), make("b", **of_both | setting)
    for pair in ((a, b), (b, a)):
        results = compare_runs(*pair)
        assert [obstacle.name for obstacle in results.obstacles] == [name]
        assert compare_runs(*pair, allowed=[name]).outcome == "no gate"
    assert name not in alike(StoredRun.read(a))


def test_a_closed_loop_is_compared_at_the_levels_of_both(make):
    a, b = make("a", concurrency=[1, 8, 64]), make("b", concurrency=[8])
    [obstacle] = compare_runs(a, b).obstacles
    assert obstacle.name == "concurrency"
    assert (
        obstacle.reason == "vLLM has 1 in flight, 8 in flight, 64 in flight in A, vLLM has 8 in flight in B"
    )
    results = compare_runs(a, b, parse_gate("ttft_p50<=+20%,error_rate<=5%"), allowed=["concurrency"])
    assert results.outcome == "pass" and len(results.gates) == 2
    assert {difference.load for difference in results.differences} == {ClosedLoop(concurrency=8)}
    assert {gated.load for gated in results.gates} == {ClosedLoop(concurrency=8)}
    shown = bench(a, b, "--allow-different", "concurrency").stdout
    assert "vLLM, 8 in flight" in shown and "scale" not in shown


def test_closed_loops_are_compared_by_their_lengths_and_what_they_send_at_the_same_load(make):
    closed = {"concurrency": [1, 8], "n": 100}
    a = make("a", **closed, input_len=256, output_len=64)
    shorter = compare_runs(a, make("b", **closed, input_len=128, output_len=64), allowed=["requests"])
    assert [obstacle.reason for obstacle in shorter.obstacles if not obstacle.allowed] == [
        "lengths differ: input tokens: 256 each in A, 128 each in B"
    ]
    trace = compare_runs(a, make("trace", trace={"input_tokens": 379_875, "output_tokens": 64}))
    [reason] = [obstacle.reason for obstacle in trace.obstacles if obstacle.name == "lengths"]
    assert "input tokens: 256 each in A, 379,875 in all in B; output tokens: 64 each in A" in reason
    replay = make("replay", trace={"name": "azure", "sha256": "ab" * 32})
    [said] = [found.reason for found in compare_runs(a, replay).obstacles if found.name == "trace"]
    assert said.endswith("B has azure (abababab)") and "null" not in said and "None" not in said
    more = compare_runs(a, make("c", concurrency=[8], n=10, rounds=40, input_len=256, output_len=64))
    assert [obstacle.reason for obstacle in more.obstacles if obstacle.name == "requests"] == [
        "requests differ: 8 in flight: 100 in A, 320 in B"
    ]
    assert "lengths" not in {obstacle.name for obstacle in more.obstacles}


def test_rates_are_compared_by_what_was_asked_for(make):
    """How many requests arrive in a given time is drawn."""
    a, b = (make(name, request_rate=[4.0], trace={"requests": n}) for name, n in (("a", 251), ("b", 238)))
    assert "requests" not in {obstacle.name for obstacle in compare_runs(a, b).obstacles}


def test_goodput_is_compared_where_there_is_a_service_level(make):
    a, b = make("a", slo="ttft_ms=60"), make("b", slo="ttft_ms=60", slower=1.2)
    found = by_statistic(compare_runs(a, b))[1.0, "goodput_req_per_s", "goodput_req_per_s"]
    assert (found.verdict, found.ratio < 0.6) == ("worse", True)
    plain = make("c"), make("d")
    with pytest.raises(UsageError, match="needs a service level"):
        compare_runs(*plain, parse_gate("goodput_req_per_s>=-5%"))


def test_the_json_is_what_its_schema_says(make):
    a, b = make("a"), make("b")
    found = bench(a, b, "--json", "--gate", GATE)
    results = CompareResults.model_validate_json(found.stdout)
    assert results.outcome == json.loads(found.stdout)["outcome"]
    assert set(results.differences[0].repeats_to_find) == {"5 %", "10 %", "20 %"}
    assert results == compare_runs(a, b, parse_gate(GATE))


def test_what_is_no_run_is_said(make, make_own, tmp_path):
    a = make_own("a")
    with pytest.raises(UsageError, match="does not exist"):
        compare_runs(a, tmp_path / "absent")
    (a / "requests.parquet").unlink()
    with pytest.raises(UsageError, match="not finished"):
        compare_runs(a, make("b"))
    with pytest.raises(UsageError, match="there is no difference 'weather'"):
        compare_runs(a, a, allowed=["weather"])


def test_one_run_with_itself_corrects_for_all_its_pairs(make):
    """The pairs that the run itself compares, all corrected together."""
    run = make("a", engines=("vllm", "roseinfer", "sglang"), spread=0.02)
    results = compare_runs(run, run)
    pairs = [("vLLM", "roseinfer"), ("vLLM", "SGLang"), ("roseinfer", "SGLang")]
    assert list(dict.fromkeys((d.engine_a, d.engine_b) for d in results.differences)) == pairs
    assert results.comparisons == 3 * 13
    alone = compare_runs(run, run, engine_a="vllm", engine_b="roseinfer")
    of_pair = [d for d in results.differences if (d.engine_a, d.engine_b) == pairs[0]]
    assert [d.ratio for d in of_pair] == [d.ratio for d in alone.differences]
    assert all(a.adjusted_p >= b.adjusted_p for a, b in zip(of_pair, alone.differences, strict=True))
    found = bench(run, run)
    assert found.exit_code == 0 and "39 comparisons" in found.stdout


def test_a_disturbed_machine_is_said_of_what_is_compared(make, make_own):
    a, b = make("a", engines=("roseinfer", "vllm")), make_own("b", engines=("roseinfer", "vllm"))
    quiet = {"seconds": 10, "samples": 20, "cpus": 2, "own_cpu_s": 10, "steal_share": 0}
    for cell, (engine, label, cores) in enumerate(
        [("roseinfer", "roseinfer", 1.5), ("vllm", "vLLM", 0.01), ("roseinfer", "roseinfer", 0.8)]
    ):
        machine = MachineLoad(**quiet, foreign_cores_mean=cores, foreign_cores_max=cores)
        place = {
            "cell": cell,
            "engine": engine,
            "label": label,
            "load": TraceLoad(scale=1),
            "repeat": cell // 2,
        }
        append_journal(b / JOURNAL, JournalEntry(**place, finished="2025-01-01T00:00:00Z", machine=machine))
    [found] = compare_runs(a, b).disturbed
    assert (found.run, found.label, found.load) == ("B", "roseinfer", TraceLoad(scale=1))
    assert [fact.scope.repeat for fact in found.facts] == [0, 1]
    assert (
        "warning: The machine was disturbed while roseinfer of B was measured at scale 1"
        in bench(a, b).stdout
    )
    assert compare_runs(a, b, engine_a="vLLM").disturbed == []
    assert compare_runs(b, a).disturbed[0].run == "A"
    assert [entry.run for entry in compare_runs(b, b).disturbed] == ["A"]
