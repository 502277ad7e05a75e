"""What a report says of the code that servers were started from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.report.text.badges import badges
from harness.report.text.code_notices import of_code
from harness.report.text.provenance import code
from harness.runs.reader import Run
from harness.schema.run_info import Code, LaunchRecord

ONE, OTHER = Code(folder="/src/one", sha256="1" * 16), Code(folder="/src/other", sha256="2" * 16)


def launch(label: str, path: str | None, *codes: Code, engine: str = "roseinfer") -> LaunchRecord:
    env = {} if path is None else {"PYTHONPATH": path}
    return LaunchRecord(engine=engine, label=label, env=env, codes=list(codes))


def of(run: Run, *launches: LaunchRecord) -> Run:
    meta = run.meta.model_copy(update={"launches": list(launches)})
    return replace(run, results=run.results.model_copy(update={"meta": meta}))


def test_code_that_changed_is_a_grave_notice(run):
    changed = of(run, launch("roseinfer", None, ONE, OTHER), launch("vLLM", None, ONE, engine="vllm"))
    [notice] = of_code(changed)
    assert notice.title == "The code of roseinfer changed during the run."
    assert "in /src/one and /src/other" in notice.detail
    assert any(badge.kind == "bad" and notice in badge.notices for badge in badges(changed))
    moved = OTHER.model_copy(update={"sha256": ONE.sha256})
    assert not of_code(of(run, launch("roseinfer", None, ONE, moved)))


def test_a_variant_that_should_run_other_code_and_did_not(run):
    [notice] = of_code(of(run, launch("roseinfer", None, ONE), launch("roseinfer (before)", "/before", ONE)))
    assert notice.title == "roseinfer and roseinfer (before) ran the same code."
    assert "in /src/one do not" in notice.detail


@pytest.mark.parametrize(
    "other",
    [
        launch("roseinfer (before)", "/before", OTHER),
        launch("roseinfer (before)", "/before"),
        launch("roseinfer (one thread)", "/now", ONE),
        launch("vLLM", "/before", ONE, engine="vllm"),
    ],
    ids=["other code", "unknown code", "the same path", "another engine"],
)
def test_what_may_run_the_same_code(run, other):
    assert not of_code(of(run, launch("roseinfer", "/now", ONE), other))


def test_the_code_of_a_launch_in_words():
    assert code(launch("roseinfer", None, ONE)) == f"/src/one ({ONE.sha256})"
    assert code(launch("roseinfer", None)) == ""
