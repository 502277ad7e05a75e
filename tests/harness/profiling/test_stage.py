"""The whole stage against real roseinfer processes, some of them slowed down on purpose."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.cli.commands import app
from harness.engines import registry
from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.base import Engine, Installation
from harness.engines.local import CaptureRequest, LocalEngine
from harness.engines.variants import Variant
from harness.errors import CleanupError, EngineError, UsageError
from harness.files import write_json
from harness.profiling.analysis import analyse
from harness.profiling.artifacts import read_manifest, read_profiles
from harness.profiling.explain import OUTSIDE
from harness.profiling.plan import ProfileOptions, plan_captures, unprofiled
from harness.profiling.py_spy import INSTALL
from harness.profiling.stage import _Stage, profile_run
from harness.profiling.subject import begin_run, open_subject
from harness.report.render import write_outputs, write_report
from harness.runs.events import CaptureDone, CaptureSkipped, CaptureStarting, Event
from harness.runs.reader import load_run, load_runs
from harness.schema.files import read_stored
from harness.schema.load import ClosedLoop, TraceLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.profile import Gap, Level, ProfileManifest, ProfileRun
from harness.schema.results import OnlineResults
from tests.harness.measured import run_online

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SLOWED = Path(__file__).parent / "slowed"
PATH = os.pathsep.join(filter(None, [str(SLOWED), os.environ.get("PYTHONPATH")]))
#: They start soon: with room for what they are asked for, warmed up by the load alone.
SOON = ["--kv-tokens", "1024", "--no-warmup"]
#: Made-up slowdowns, by patches that `slowed/sitecustomize.py` makes: one in two places, and one that waits a
#: little in each step, so that what the machine does beside is not what takes the time.
PLAIN = Variant(args=SOON, env={"PYTHONPATH": PATH, "SLOWED": "steps"})
SLOWED_IN = Variant(label="slowed", args=SOON, env={"PYTHONPATH": PATH, "SLOWED": "tokenizer,layers"})
ENGINES = ["roseinfer", "roseinfer@slowed"]
LABELS = {"roseinfer", "roseinfer (slowed)"}


def find_variant(engine: Engine, name: str | None) -> Variant:
    return SLOWED_IN if name else PLAIN


@pytest.fixture(autouse=True)
def variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_variant", find_variant)


def small(out: Path, **others: Any) -> OnlineSettings:
    """Settings of a small run of roseinfer."""
    settings = {
        "engines": "roseinfer", "model": "random:gpt2-tiny", "device": "cpu", "dtype": "fp32",
        "concurrency": 2, "n": 4, "input_len": 16, "output_len": 12, "max_model_len": 64, "out": out,
    }  # fmt: skip
    return OnlineSettings.model_validate(settings | others)


def begun(out: Path, **others: Any) -> Path:
    """The folder of a small run that measured nothing."""
    return begin_run(small(out, **others), ["bench"])


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short benchmark in a closed loop of 4."""
    options = dict.fromkeys(("calibrate", "check_answers", "figures"), False) | {"text_prompts": True}
    load = {"engines": ENGINES, "concurrency": 4, "n": 8, "warmup": 4}
    settings = small(tmp_path_factory.mktemp("runs"), **load, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "find_variant", find_variant)
        folder, results = run_online(settings, ["bench"], lambda event: None)
    write_json(folder / "online_results.json", with_verdicts(results))
    return folder


@dataclass
class Profiled:
    """A benchmark that was profiled, and how the command ended. `before`: its results before that."""

    folder: Path
    done: Result
    before: bytes


@pytest.fixture(scope="module")
def profiled(benchmark: Path) -> Profiled:
    """The engine, and one that is slow where only a profile shows it."""
    before = (benchmark / "online_results.json").read_bytes()
    words = ["--engines", ",".join(ENGINES), "--steps", "12", "--tool", "both"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "find_variant", find_variant)
        done = CliRunner().invoke(app, ["profile", str(benchmark), *words])
    return Profiled(benchmark, done, before)


@pytest.fixture
def folder(profiled: Profiled, tmp_path: Path) -> Path:
    """A copy of the run, of a test's own."""
    return shutil.copytree(profiled.folder, tmp_path / "runs" / profiled.folder.name)


def gap(gaps: list[Gap], metric: str, label: str) -> Gap:
    """The gap between the engine and a slowed one."""
    [between] = [gap for gap in gaps if (gap.metric, gap.a, gap.b) == (metric, "roseinfer", label)]
    return between


def with_verdicts(results: OnlineResults) -> OnlineResults:
    """Sets the verdict that the slowed engines are worse: one short repeat may not show it."""
    comparisons = [comparison.model_copy(update={"verdict": "better"}) for comparison in results.comparisons]
    return results.model_copy(update={"comparisons": comparisons})


def largest(between: Gap) -> str:
    return min(between.parts, key=lambda part: part.delta).name


def test_slowdowns_are_found_where_they_were_made(profiled: Profiled, folder: Path) -> None:
    done = profiled.done
    assert (done.exit_code, done.stdout.strip()) == (0, str(profiled.folder / "profile_manifest.json"))
    for label in LABELS:
        assert f"{label}: no nsys profile: skipped, because this run uses no GPU" in done.stderr
        assert f"{label}: torch profile, " in done.stderr
    assert "norm and elementwise" in done.stderr
    assert "decode step: norm and elementwise" in (folder / "report.html").read_text()
    manifest = ProfileManifest.model_validate_json((folder / "profile_manifest.json").read_bytes())
    assert {captured.label for captured in manifest.runs} == LABELS
    profiles = analyse(folder)
    for captured in manifest.runs:
        assert captured.error is None
        [trace] = captured.artifacts
        assert trace.path == f"{captured.output_dir}/trace.json.gz"
        assert (folder / trace.path).stat().st_size == trace.bytes
        assert captured.level.in_flight in (3, 4)
    for figures in profiles.figures:
        assert figures.device == "cpu"
        assert sum(step.n for step in figures.steps.values()) >= 9
        for step in figures.steps.values():
            assert step.busy_ms == pytest.approx(sum(step.categories_ms.values()))
    assert (folder / "online_results.json").read_bytes() == profiled.before

    slow_tokenizer = gap(profiles.gaps, "ttft_ms", "roseinfer (slowed)")
    assert largest(slow_tokenizer) in ("http", OUTSIDE)
    assert min(part.delta for part in slow_tokenizer.parts) < -250  # of the 500 that it sleeps
    assert largest(gap(profiles.gaps, "itl_ms", "roseinfer (slowed)")) == "decode step: norm and elementwise"
    levels = open_subject(folder, None, lambda event: None).levels
    assert all(2 < levels[label].running <= 4 for label in LABELS)

    page = write_outputs(load_run(folder, trust=True))
    links = re.findall(r'href="([^"]*trace\.json\.gz)"', page.read_text())
    assert len(links) == 2 and all((page.parent / link).is_file() for link in links)
    (folder / manifest.runs[0].artifacts[0].path).rename(folder / "elsewhere")
    away = write_report(load_runs([folder]), folder.parent / "reports" / "one.html")
    assert "trace.json.gz (not kept)" in away.read_text()
    [link] = re.findall(r'href="([^"]*trace\.json\.gz)"', away.read_text())
    assert (away.parent / link).is_file()
    diff = CliRunner().invoke(app, ["profile", "diff", str(folder), str(folder)])
    assert diff.exit_code == 0
    assert "norm and elementwise" in diff.stdout and "roseinfer (slowed)" in diff.stdout
    by_name = ["--engine-a", "roseinfer@slowed", "--engine-b", "roseinfer"]
    diff = CliRunner().invoke(app, ["profile", "diff", str(folder), str(folder), *by_name])
    assert "A: roseinfer (slowed)" in diff.stdout and "B: roseinfer " in diff.stdout
    diff = CliRunner().invoke(app, ["profile", "diff", str(folder), str(folder), "--engine-b", "roseinfer"])
    assert "A: roseinfer (slowed)" in diff.stdout and "B: roseinfer " in diff.stdout
    alike = ["--engine-a", "roseinfer", "--engine-b", "roseinfer"]
    diff = CliRunner().invoke(app, ["profile", "diff", str(folder), str(folder), *alike])
    assert isinstance(diff.exception, UsageError) and "A and B are both roseinfer of" in str(diff.exception)


def test_what_cannot_be_read_leaves_the_rest_whole(folder: Path) -> None:
    with pytest.raises(UsageError, match="the run has no 'vllm'") as raised:
        open_subject(folder, None, lambda event: None, ["roseinfer", "vllm"])
    assert raised.value.hint == f"it has {', '.join(ENGINES)}"
    with pytest.raises(UsageError, match="the run has no such engine"):
        open_subject(folder, None, lambda event: None, [])
    results = read_stored(folder / "online_results.json", OnlineResults)
    assert unprofiled(folder, results, "both") == []
    assert unprofiled(folder, results, "nsys") == ENGINES
    trace = folder / "profiles/torch/roseinfer/trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:-100])
    profiles = analyse(folder)
    assert "cut off" in profiles.unread["profiles/torch/roseinfer/trace.json.gz"]
    assert [figures.label for figures in profiles.figures] == ["roseinfer (slowed)"]
    assert read_profiles(folder) == profiles
    assert "Not read" in write_outputs(load_run(folder, trust=True)).read_text()


def test_engines_without_a_profiler_are_left_out_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(Roseinfer, "profiler", LocalEngine.profiler)
    monkeypatch.setattr("harness.profiling.plan.find_py_spy", lambda: None)
    folder = begun(tmp_path)
    subject = open_subject(folder, None, lambda event: None)
    reason = f"roseinfer has no profiler of its own; with py-spy ({INSTALL}) it is sampled"
    skipped = CaptureSkipped("roseinfer", "torch", reason)
    events: list[Event] = []
    with pytest.raises(EngineError, match="nothing could be profiled"):
        profile_run(subject, ProfileOptions(), events.append)
    assert events == [skipped] and not (folder / "logs").exists()

    no_gpu = CaptureSkipped("roseinfer", "nsys", "skipped, because this run uses no GPU")
    with pytest.raises(EngineError, match="nothing could be profiled") as raised:
        profile_run(subject, ProfileOptions("both"), events.append)
    assert events[1:] == [skipped, no_gpu] and "an engine that has a profiler" in raised.value.hint

    captured = ProfileRun(
        tool="torch", engine="vllm", label="vLLM", cmd=[], n=1, level=Level(in_flight=1, running=1),
        steps=1, output_dir="profiles", log_path="log", wall_s=1,
    )  # fmt: skip
    had = ProfileManifest(meta=subject.info, runs=[captured])
    write_json(folder / "profile_manifest.json", had)
    assert profile_run(subject, ProfileOptions(), events.append).runs == [captured]
    with pytest.raises(EngineError, match="nothing could be profiled") as raised:
        profile_run(subject, ProfileOptions("nsys"), events.append)
    assert raised.value.hint == f"torch's profiler needs no GPU: `bench profile {folder} --tool torch`"


def test_an_engine_in_python_without_a_profiler_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(Roseinfer, "profiler", LocalEngine.profiler)
    monkeypatch.setattr("harness.profiling.plan.find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(_Stage, "run", lambda stage: (stage.planned.folder / "1.stacks").write_text("f 1"))
    subject = open_subject(begun(tmp_path), None, lambda event: None)
    [run] = profile_run(subject, ProfileOptions(), lambda event: None).runs
    assert (run.tool, run.output_dir, run.error) == ("py-spy", "profiles/py-spy/roseinfer", None)
    assert [artifact.kind for artifact in run.artifacts] == ["stacks"]
    analyse(subject.folder)
    summary = read_manifest(subject.folder).summary
    assert summary is not None and summary.spent[0].parts == {"f": 1.0}
    assert (subject.folder / "profile_manifest.json").read_text().index('"summary"') < 60
    monkeypatch.setattr(Roseinfer, "in_python", False)
    assert plan_captures(subject, ProfileOptions(), lambda event: None) == []


def test_an_engine_is_asked_for_its_profiler_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folder and the steps of its capture; what it cannot say is the capture's error."""
    asked: list[CaptureRequest] = []

    def refuse(engine: Engine, installation: Installation, capture: CaptureRequest) -> None:
        asked.append(capture)
        raise EngineError("it does not say", "ask again")

    monkeypatch.setattr(Roseinfer, "profiler", refuse)
    subject = open_subject(begun(tmp_path), None, lambda event: None)
    [run] = profile_run(subject, ProfileOptions(steps=7, stacks=True), lambda event: None).runs
    folder = subject.folder.resolve() / run.output_dir
    assert asked == [CaptureRequest("torch", folder, 7, stacks=True)]
    assert run.error is not None and run.error.startswith("it does not say")


def test_an_interrupted_capture_leaves_the_one_before(tmp_path, monkeypatch):
    """One that fails takes its place, and is replaced by the next."""
    subject = open_subject(begun(tmp_path), None, lambda event: None)
    trace = subject.folder / "profiles/torch/roseinfer/trace.json"

    def captured(text: str, error: type[BaseException] | None = None, most: int = 100) -> ProfileManifest:
        def run(stage: _Stage) -> None:
            assert not trace.exists()
            trace.write_text(text)
            if error is not None:
                raise error("in the middle")

        monkeypatch.setattr(_Stage, "run", run)
        return profile_run(subject, ProfileOptions(max_bytes=most), lambda event: None)

    first = captured("the first")
    for error in (KeyboardInterrupt, CleanupError):
        with pytest.raises(error):
            captured("half a trace", error)
        assert trace.read_text() == "the first" and read_manifest(subject.folder) == first
    captured("the second")
    assert trace.read_text() == "the second" and list(trace.parents[1].iterdir()) == [trace.parent]

    [failed] = captured("the third", most=8).runs
    assert failed.error is not None and "was removed" in failed.error
    assert not failed.artifacts and not trace.exists() and len(read_manifest(subject.folder).runs) == 1
    [whole] = captured("the fourth").runs
    assert whole.error is None and len(whole.artifacts) == 1 and trace.read_text() == "the fourth"


def test_a_run_of_a_gpu_is_profiled_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.telemetry.gpu.available", lambda: False)
    done = CliRunner().invoke(app, ["profile", str(begun(tmp_path, device="cuda")), "--quiet"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.hint == "profile on a machine with a GPU"


def test_the_load_that_is_profiled(tmp_path: Path) -> None:
    folder = begun(tmp_path, concurrency="2,8,4", n=16)
    for load, held in ((None, 8), (ClosedLoop(concurrency=2), 2)):
        subject = open_subject(folder, load, lambda event: None)
        assert subject.load == ClosedLoop(concurrency=held)
        assert subject.level(subject.engine_variants[0]).in_flight == held
    with pytest.raises(UsageError, match="scale 1 is not one of the run's loads") as raised:
        open_subject(folder, TraceLoad(scale=1.0), lambda event: None)
    assert raised.value.hint == "it has 2 in flight, 4 in flight, 8 in flight"
    done = CliRunner().invoke(app, ["profile", str(folder), "--concurrency", "3", "--quiet"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception.message) == "3 in flight is not one of the run's loads"
    both = CliRunner().invoke(app, ["profile", str(folder), "--concurrency", "2", "--scale", "1"])
    assert isinstance(both.exception, UsageError)


def test_both_sides_of_an_aa_run_keep_their_captures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first left stays when the second is captured."""

    def run(stage: _Stage) -> None:
        stage.notify(stage.starting)
        label = stage.planned.engine_variant.label
        (stage.planned.folder / "trace.json.gz").write_bytes(f"that of {label}".encode())

    monkeypatch.setattr(_Stage, "run", run)
    folder = begun(tmp_path, aa=True, repeats=2, warmup=2)
    subject = open_subject(folder, None, lambda event: None)
    events: list[Event] = []
    manifest = profile_run(subject, ProfileOptions(steps=4), events.append)
    assert [type(event) for event in events] == [CaptureStarting, CaptureDone] * 2
    assert read_manifest(folder) == manifest and len(manifest.runs) == 2
    places = {
        captured.label: (captured.output_dir, captured.log_path, captured.error) for captured in manifest.runs
    }
    assert places == {
        f"roseinfer ({side})": (f"profiles/torch/roseinfer.{side}", f"logs/roseinfer.{side}.torch.log", None)
        for side in "AB"
    }
    for captured in manifest.runs:
        [trace] = captured.artifacts
        assert (folder / trace.path).read_text() == f"that of {captured.label}"


def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        open_subject(tmp_path, None, lambda event: None)
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 1, "kind": "online"}))
    with pytest.raises(UsageError, match="not as this version of bench writes it"):
        open_subject(tmp_path, None, lambda event: None)
    shown = CliRunner().invoke(app, ["profile", "diff", str(tmp_path), str(tmp_path)])
    assert isinstance(shown.exception, UsageError) and "bench profile" in shown.exception.hint
