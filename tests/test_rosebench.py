"""`import rosebench`: a run as tables, with the numbers of its report."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rosebench
from tests.harness.report.conftest import make_online

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return rosebench.load(str(make_online(tmp_path_factory.mktemp("library") / "run", n=60)))


def test_a_row_is_a_request_in_milliseconds(run: Any) -> None:
    requests = run.requests
    raw = run._run.requests
    assert len(requests) == len(raw) and set(requests.engine) == set(raw.label)
    ttft_ms = ((raw.t_first - raw.t_sent) * 1e3).dropna()
    assert sorted(requests.ttft_ms.dropna()) == pytest.approx(sorted(ttft_ms))
    assert (requests.e2e_ms.dropna() >= requests.ttft_ms.dropna()).all() and requests.tpot_ms.notna().any()
    assert set(requests.load) == {0.4, 0.8, 1.6} and set(requests.load_kind) == {"trace"}


def test_percentiles_of_requests_are_those_of_the_results(run: Any) -> None:
    of_requests = run.requests.groupby(["engine", "load"]).ttft_ms.median()
    p50 = run.results.query("metric == 'ttft_ms' and statistic == 'p50' and repeat.isna()")
    assert len(p50) == len(of_requests) > 3
    for row in p50.itertuples():
        assert row.value == pytest.approx(of_requests[row.label, row.load], rel=0.05)
        assert row.lo <= row.value <= row.hi and row.unit == "ms"


def test_two_engines_are_compared_either_way(run: Any) -> None:
    there, back = run.compare("vllm", "SGLang"), run.compare("sglang", "vLLM")
    assert len(there) == len(back) > 3
    assert (there.ratio * back.ratio).tolist() == pytest.approx([1.0] * len(there))
    assert (there["vLLM"] / there["SGLang"]).tolist() == pytest.approx(there.ratio.tolist())
    known = there.lo.notna()
    assert (there.lo[known] * back.hi[known]).tolist() == pytest.approx([1.0] * int(known.sum()))
    swapped = {"better": "worse", "worse": "better"}
    assert [swapped.get(verdict, verdict) for verdict in there.verdict] == back.verdict.tolist()


def test_a_wrong_name_has_a_hint(run: Any, tmp_path: Path) -> None:
    with pytest.raises(rosebench.BenchError, match="has no engine 'vlm'") as raised:
        run.compare("vlm", "sglang")
    assert "did you mean vllm?" in raised.value.hint
    with pytest.raises(rosebench.BenchError, match="does not exist"):
        rosebench.load(tmp_path / "absent")


def test_the_notebook_works(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "docs" / "examples"
    monkeypatch.chdir(folder)
    cells = json.loads((folder / "results.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            *statements, last = ast.parse("".join(cell["source"])).body
            assert isinstance(last, ast.Expr) and not cell["outputs"]
            exec(compile(ast.Module(statements, []), "cell", "exec"), names)
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            assert len(shown) > 0 and isinstance(shown, list | pd.DataFrame)
