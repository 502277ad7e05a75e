"""`bench online --aa` and `bench compare` as a user runs them, against a server of known speed."""

from __future__ import annotations

import json
from pathlib import Path

from harness.schema.compare_results import CompareResults

from .run_checks import check_end


def test_an_engine_against_itself_and_then_a_slower_one(start_mock, bench, quick):
    server, slow = start_mock("--ttft-ms", "20"), start_mock("--ttft-ms", "160")
    load = [*quick, "--n", "6", "--scales", "0.01", "--repeats", "2"]
    done = bench("online", "--base-url", server.url, *load, "--aa")
    run = Path(done.out.strip()).parent
    check_end(done.code, run)
    results = json.loads((run / "online_results.json").read_text())
    assert {(comparison["a"], comparison["b"]) for comparison in results["comparisons"]} == {
        ("openai (A)", "openai (B)")
    }
    assert all(comparison["repeats"] == [2, 2] for comparison in results["comparisons"])
    journal = [json.loads(line)["label"] for line in (run / "journal.jsonl").read_text().splitlines()]
    assert sorted(journal) == ["openai (A)"] * 2 + ["openai (B)"] * 2
    assert "openai against itself: " in done.err and "repeats to find 10 %" in done.err

    other = bench("online", "--base-url", slow.url, *load)
    worse = Path(other.out.strip()).parent
    check_end(other.code, worse)
    # A busy machine makes the client late, which is not what is tested here.
    anyhow = ("--gate", "ttft_p50<=+50%", "--allow-different", "invalid")
    sides = ("--engine-a", "openai (A)", "--engine-b")
    gated = bench("compare", str(run), str(worse), *anyhow, *sides, "openai")
    assert gated.code == 1, gated.out
    assert gated.out.splitlines()[-1] == "verdict: regression"
    same = bench("compare", str(run), str(run), *anyhow, *sides, "openai (B)", "--json")
    assert same.code in (0, 2), same.out
    assert CompareResults.model_validate_json(same.out).gates[0].engine_b == "openai (B)"
