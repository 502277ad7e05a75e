"""Short online runs, ended by their user or not."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.metrics import validity
from harness.report.render import write_without_figures
from harness.runs.events import CellDone, Event, Started
from harness.runs.reader import load_run
from harness.schema.online_settings import OnlineSettings
from tests.harness.measured import run_online

Act = Callable[[], object]
Make = Callable[..., OnlineSettings]


@dataclass
class Watcher:
    """Takes a run's events; does what `after_cell` says for a cell when it is done."""

    after_cell: dict[int, Act] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, CellDone):
            self.after_cell.get(event.cell.index, lambda: None)()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def measured(self) -> list[int]:
        return [event.cell.index for event in self.of(CellDone)]


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def settings_for(tmp_path: Path) -> Callable[..., OnlineSettings]:
    """Settings of a short run against a server at an address."""

    return lambda url, **given: quick_settings(url, tmp_path / "runs", **given)


def quick_settings(url: str, out: Path, **given: Any) -> OnlineSettings:
    quick = {"max_model_len": 1024, "n": 4, "scales": [0.02, 0.01], "warmup": 0}
    quick |= {"calibrate": False, "check_answers": False}
    return OnlineSettings(base_url=url, out=out, **quick | given)


def interrupted(settings: OnlineSettings, cell: int | None = 0, *plans: Any) -> Path:
    """The folder of a run that the user ended when `cell` was done; None: something else ends it."""
    watch = Watcher({} if cell is None else {cell: press_ctrl_c})
    with pytest.raises(KeyboardInterrupt):
        run_online(settings, ["bench"], watch, *plans)
    folder: Path = watch.of(Started)[0].folder
    assert not (folder / "online_results.json").exists()
    return folder


def report_of(folder: Path) -> str:
    """Writes what is read of a run but its figures, and returns the report."""
    return write_without_figures(load_run(folder, trust=True)).read_text()


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture(scope="session")
def runs_of_this_server(running_mock: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run of one cell, and one of two cells, interrupted after the first; with `any_lag`."""
    settings = quick_settings(running_mock.url, tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validity, "LAG_LIMIT_MS", math.inf)
        finished, _ = run_online(settings.model_copy(update={"scales": [0.01]}))
        return finished, interrupted(settings)


@pytest.fixture
def finished(integration: None, runs_of_this_server: tuple[Path, Path], tmp_path: Path) -> Path:
    """A finished run of one cell, of a test's own."""
    return Path(shutil.copytree(runs_of_this_server[0], tmp_path / "finished"))


@pytest.fixture
def half_done(integration: None, runs_of_this_server: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run with the first of two cells, of a test's own. Its server answers."""
    return Path(shutil.copytree(runs_of_this_server[1], tmp_path / "half_done"))


@pytest.fixture
def python_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str]], None]:
    """Makes an interpreter that says it has these versions, and names it for an engine."""

    def make(engine: str, versions: dict[str, str]) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho '{json.dumps({'python': '3', **versions})}'\n")
        python.chmod(0o755)
        config = tmp_path / "engines.yaml"
        config.write_text(f"{engine}: {{python: {python}}}\n")
        monkeypatch.setenv("BENCH_ENGINES", str(config))

    return make
