"""The examples: panels of Grafana, a workflow of GitHub, a Dockerfile."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from datetime import datetime
from pathlib import Path

import yaml

from harness.cli.commands import load_command
from harness.history.store import Store
from harness.schema.limits import parse_gate

from .commands import ROOT

EXAMPLES = ROOT / "docs" / "examples"
MADE = "2026-11-29T07:32:53+00:00"


def test_every_panel_of_grafana_shows_a_run_of_the_history(tmp_path: Path) -> None:
    board = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))
    [engines] = [variable["query"] for variable in board["templating"]["list"]]
    with Store.open(tmp_path / "history.sqlite", create=True):
        pass
    with sqlite3.connect(tmp_path / "history.sqlite") as history:
        history.execute(
            f"INSERT INTO run VALUES (1, 'online_1', '{MADE}', '', '', 'abc', '1', 'H200', '', '')"
        )
        for metric, statistic in (
            *((name, f"p{q}") for name in ("ttft_ms", "tpot_ms", "e2e_ms") for q in (50, 90, 99)),
            ("output_tok_per_s", "output_tok_per_s"),
        ):
            history.execute(
                "INSERT INTO result VALUES (1, 'v', NULL, 'vLLM', 'load', ?, ?, 9, '', 8, 10, 0, 0, 0, '')",
                (metric, statistic),
            )
        assert history.execute(engines).fetchall() == [("vLLM",)]
        for panel in board["panels"]:
            [target] = panel["targets"]
            assert target["queryText"] == target["rawQueryText"]
            rows = history.execute(target["queryText"].replace("$engine", "'vLLM'"))
            names = [column[0] for column in rows.description]
            first = dict(zip(names, rows.fetchone(), strict=True))
            if target["queryType"] == "time series":
                assert (
                    first["time"] == datetime.fromisoformat(MADE).timestamp()
                    and first["value"] == 9
                    and "vLLM" in first["series"]
                )
            else:
                assert first["engine"] == "vLLM" and first["ttft_p99_ms"] == 9


def test_the_workflow_calls_bench_with_options_that_it_has() -> None:
    workflow = yaml.safe_load((EXAMPLES / "gate-pull-request.yml").read_text(encoding="utf-8"))
    scripts = "\n".join(step.get("run", "") for step in workflow["jobs"]["gate"]["steps"])
    called = [shlex.split(line) for line in scripts.splitlines() if line.startswith("bench ")]
    assert [words[1] for words in called] == ["online", "compare"]
    for _, name, *words in called:
        values = load_command(name).make_context(name, words).params
        assert values.get("gate") is None or len(parse_gate(values["gate"])) == 3


def test_the_dockerfile_installs_an_extra_that_there_is() -> None:
    text = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")
    [extra] = re.findall(r"EXTRAS=\[(\w+)\]", text)
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    command = shlex.split(re.sub(r"\\\n#", "", text.partition("rosebench \\\n#")[2].partition("\n#\n")[0]))
    assert load_command(command[0]).make_context(command[0], command[1:]).params["rounds"] == "10"
