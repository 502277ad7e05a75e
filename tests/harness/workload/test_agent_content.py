"""Jobs of agents: their lengths, shared blocks and times, within the context."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.datasets.agents import AgentJobs, read_agent_jobs
from harness.errors import UsageError
from harness.workload.dataset_content import AgentContent

BLOCK = 4


def job(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "block_size": BLOCK, "hash_id_scope": "local", "requests": list(requests)}


def asked(t: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": 3, "hash_ids": ids, "stop": ""} | more


ONE = job(
    asked(0, 9, [1, 2], api_time=2.0, think_time=0.0),
    {"t": 1, "type": "subagent", "agent_id": "a", "requests": [asked(1, 4, [9])]},
    asked(3, 17, [1, 2, 3, 4], api_time=1.0, think_time=0.5),
    asked(9, 17, [1, 2, 3, 5]),
)
OTHER = job(asked(0, 8, [1, 2]), asked(7, 30, [1, 2, 6]))


def read(folder: Path, *jobs: dict[str, Any]) -> AgentJobs:
    for number, given in enumerate(jobs):
        (folder / f"trace_{number}.json").write_text(json.dumps(given))
    return read_agent_jobs(f"weka:{folder}")


def test_files_and_lines_are_read_alike(tmp_path: Path) -> None:
    found = read(tmp_path, ONE, OTHER)
    assert [len(turns) for turns in found.jobs] == [3, 2] and found.left_out == "1 jobs of subagents left out"
    assert [turn.think_s for turn in found.jobs[0]] == [0.0, 0.5, 5.0]  # 9 s - 3 s - 1 s of the answer
    assert [turn.think_s for turn in found.jobs[1]] == [0.0, 7.0]
    lines = tmp_path / "lines" / "all.jsonl"
    lines.parent.mkdir()
    lines.write_text(f"{json.dumps(ONE)}\n\n{json.dumps(OTHER)}\n")
    assert read_agent_jobs(f"weka:{lines}").jobs == found.jobs


def test_what_is_no_job_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no job of an agent"):
        read_agent_jobs(f"weka:{tmp_path}")
    with pytest.raises(UsageError, match=r"line 1: .*missing required field `requests`"):
        read(tmp_path, {"id": "x"})
    with pytest.raises(UsageError, match="blocks of several sizes"):
        read(tmp_path, ONE, OTHER | {"block_size": 8})


def test_prompts_share_the_blocks_of_their_job(tmp_path: Path) -> None:
    made = AgentContent(read(tmp_path, ONE, OTHER), 1000, 100)
    requests = made.take(4, 1, 2)
    by_session: dict[int, list[Any]] = {}
    for request in requests:
        by_session.setdefault(request.session, []).append(request)
    assert sorted(map(len, by_session.values())) == [2, 2, 3, 3]  # each job twice
    firsts = [turns[0].prompt[:BLOCK].tolist() for turns in by_session.values()]
    assert len({tuple(first) for first in firsts}) == 4  # local ids, and other tokens when a job comes again
    for turns in by_session.values():
        for before, after in itertools.pairwise(turns):
            np.testing.assert_array_equal(before.prompt[: 2 * BLOCK], after.prompt[: 2 * BLOCK])
            assert after.after == before.index and after.think_s is not None
    [three] = [turns for turns in list(by_session.values())[:2] if len(turns) == 3]
    assert three[1].prompt[8:12].tolist() == three[2].prompt[8:12].tolist()
    assert three[1].prompt[12:16].tolist() != three[2].prompt[12:16].tolist()
    inputs, outputs = made.lengths(4, 2)
    assert inputs.tolist() == [len(request.prompt) for request in requests] and set(outputs) == {3}


def test_equal_ids_of_a_global_scope_are_equal_blocks(tmp_path: Path) -> None:
    jobs = [given | {"hash_id_scope": "global"} for given in (ONE, OTHER)]
    requests = AgentContent(read(tmp_path, *jobs), 1000, 100).take(2, 1, 2)
    assert len({tuple(request.prompt[:BLOCK]) for request in requests}) == 1


def test_a_job_ends_before_the_turn_that_does_not_fit(tmp_path: Path) -> None:
    made = AgentContent(read(tmp_path, ONE, OTHER), 1000, 9 + 20)  # 9 tokens are left free
    assert sorted(request.turn for request in made.take(2, 0, 0)) == [0, 0, 1, 2]
    assert made.dropped == 1
    with pytest.raises(UsageError, match=r"no job of .* fits a context of 15 tokens"):
        AgentContent(read(tmp_path, ONE, OTHER), 1000, 15).take(1, 0, 0)
