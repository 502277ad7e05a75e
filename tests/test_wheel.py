"""The built wheel, where the checkout is not: its data is there, and the main job runs from any folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import matplotlib
import pytest
import torch  # noqa: F401  # kernels use its OpenMP runtime

import harness
import roseinfer
from harness.telemetry.revision import source_hash
from roseinfer.kernels.cpu.build import load_library
from tests.harness.bench_process import SEVERAL

CHECKOUT = Path(__file__).parents[1]
SMALL = ["--model", "random:gpt2-tiny", "--device", "cpu"]
#: Runs a script, whose engines start as quickly as what runs beside them, and of whose figures only the first
#: is drawn.
EQUAL = """
import runpy, sys
from itertools import islice
from harness.engines.process import guard
from harness.report import figures as run_figures
guard.SHARING_NICENESS = 0
draw = run_figures.figures
run_figures.figures = lambda run, charts: islice(draw(run, charts), 1)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: Builds an sdist of the current folder, and wheels of both, beside it.
BUILD = """
import os, shutil
from setuptools.build_meta import build_sdist, build_wheel
source, out = os.getcwd(), os.path.dirname(os.getcwd())
sdist = build_sdist(out)
shutil.unpack_archive(f"{out}/{sdist}", out, filter="data")
for folder, name in ((f"{out}/{sdist.removesuffix('.tar.gz')}", "by-sdist"), (source, "direct")):
    os.chdir(folder)
    build_wheel(f"{out}/{name}")
"""
#: Of the checkout, what a wheel is not built from.
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "benchmarks", "build", "dist", "docs", "outputs", "reports", "tests", "*.egg-info"
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    """Of every file below: when it was written, and its size."""
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel built from the sdist, and one built from the sources themselves."""
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(CHECKOUT, folder / "source", symlinks=True, ignore=LEFT_OUT)
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=folder / "source", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [by_sdist], [direct] = (list((folder / name).glob("*.whl")) for name in ("by-sdist", "direct"))
    return by_sdist, direct


class Environment:
    """A virtual environment, with the wheel or without, used from an empty folder.

    What the wheel depends on is imported from the environment of the tests, whose .pth files, and so the
    checkout, are not read.
    """

    def __init__(self, folder: Path, wheel: Path | None = None) -> None:
        environment = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        self.bin = environment / "bin"
        if wheel is not None:
            pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
            subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
        [self.packages] = environment.glob("lib/python3*/site-packages")
        (self.packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        self.user = folder / "user"
        self.cwd = folder / "empty"
        self.cwd.mkdir()

    def run(
        self, program: str, *words: str, code: int | tuple[int, ...] = 0, path: str = "", given: str = ""
    ) -> str:
        """What the program prints; its exit status has to be `code`, or one of several. `path` is PYTHONPATH,
        `given` what it reads."""
        ours = ("BENCH_", "PYTHON", "ROSEINFER_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        folders = {f"XDG_{kind}_HOME": str(self.user / kind.lower()) for kind in ("CACHE", "CONFIG")}
        folders["MPLCONFIGDIR"] = matplotlib.get_cachedir()  # fonts need not be listed again
        done = subprocess.run(
            [self.bin / program, *words],
            cwd=self.cwd,
            env=kept | folders | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": path},
            input=given,
            capture_output=True,
            text=True,
            timeout=300,
        )
        codes = (code,) if isinstance(code, int) else code
        assert done.returncode in codes, f"{program} {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def bench(self, *commands: str, path: str = "") -> list[tuple[int, str, str]]:
        """Exit status, output and errors of each command, all in one process."""
        given = json.dumps([command.split() for command in commands])
        return [(*end,) for end in json.loads(self.run("python", "-c", SEVERAL, given=given, path=path))]


@pytest.fixture(scope="module")
def installed(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("installed"), wheels[0])


def test_the_wheel_is_the_same_by_way_of_the_sdist(wheels: tuple[Path, Path]) -> None:
    by_sdist, direct = map(contents, wheels)
    assert by_sdist == direct
    prompts = (CHECKOUT / "datasets/builtin.jsonl").read_bytes()
    assert by_sdist["harness/data/datasets/builtin.jsonl"] == prompts
    assert by_sdist["harness/data/traces/catalog.yaml"] == (CHECKOUT / "traces/catalog.yaml").read_bytes()


def test_every_file_of_the_packages_is_installed_and_the_checkout_is_not_used(installed: Environment) -> None:
    code = (
        "import harness, roseinfer, rosemodels, harness.telemetry.revision as r, importlib.metadata as m;"
        "print(harness.__file__, roseinfer.__file__, rosemodels.__file__);"
        "print(r.source_hash(), r.git_revision(), m.version('rosebench'))"
    )
    places, facts = installed.run("python", "-c", code).splitlines()
    assert all(Path(place).is_relative_to(installed.packages) for place in places.split())
    assert facts == f"{source_hash()} None {harness.__version__}"
    assert harness.__version__ == roseinfer.__version__


def test_what_comes_with_it_is_listed(installed: Environment) -> None:
    commands = ("traces info builtin", "engines list", "engines list vllm", "engines show vllm --device cuda")
    (_, traces, _), (_, engines, _), (_, variants, _), (code, *shown) = installed.bench(*commands)
    assert "Splitwise" in traces
    assert "separate-all-reduce" in variants and harness.__version__ in engines
    assert code == 3 and "bench engines install vllm" in "".join(shown)


def test_the_main_job_runs_from_any_folder(installed: Environment) -> None:
    """From a folder that holds only files with names of modules. The user's cache has kernels built from the
    checkout's sources: the wheel's are the same, and are not built again."""
    built = Path(load_library()._name)
    kernels = installed.user / "cache" / "roseinfer" / built.name
    kernels.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(built, kernels)
    before = snapshot(installed.packages)
    traps = {installed.cwd / name for name in ("harness.py", "random.py", "roseinfer.py", "torch.py")}
    for trap in traps:
        trap.write_text("raise SystemExit('a file of the current folder was imported')\n")
    load = ["--n", "3", "--scales", "0.02", "--fit", "clip", "--max-output-len", "4", "--warmup", "1"]
    load += ["--max-model-len", "128"]
    words = ("online", "--engines", "roseinfer", *SMALL, *load, "--no-calibrate", "--quiet", "--anyway")
    bench = ("-P", "-c", EQUAL, str(installed.bin / "bench"))
    printed = installed.run("python", *bench, *words, code=(0, 3))
    [run] = installed.cwd.glob("outputs/benchmarks/serving/*")
    assert f"{run.relative_to(installed.cwd)}/report.html" in printed
    results = json.loads((run / "online_results.json").read_text())
    assert [check["verdict"] for check in results["answers"]["checks"]] == ["same"]
    for summary in results["summaries"]:
        assert summary["num_success"] == 3
        # On a busy machine, and then the exit status is 3.
        assert all(reason["kind"] == "late" for reason in summary["invalid_reasons"])
    assert (run / "report.html").stat().st_size > 100_000
    assert "generate" in installed.run("roseinfer", "--help")
    assert (installed.user / "cache" / "rosebench" / "models").is_dir()
    assert [*kernels.parent.glob("cpu-*.so")] == [kernels]
    assert {*installed.cwd.iterdir()} == {*traps, installed.cwd / "outputs"}
    assert snapshot(installed.packages) == before


def test_a_checkout_on_the_path_is_enough(tmp_path: Path) -> None:
    plain = Environment(tmp_path)
    commands = ("traces list", "engines list", "engines list vllm")
    (_, traces, _), (_, engines, _), (_, variants, _) = plain.bench(*commands, path=str(CHECKOUT))
    assert "azure-2023-conv" in traces
    assert "separate-all-reduce" in variants and harness.__version__ in engines
    plain.run("python", "-c", "import harness", code=1)
