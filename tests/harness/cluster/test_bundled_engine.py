"""An engine that only its node has: packed here, unpacked there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines.variants import BundleRecipe
from harness.environments import install
from tests.harness.cluster.conftest import ROOT, STORE_BYTES
from tests.harness.cluster.test_cluster_run import measured, requests_of
from tests.harness.environments.test_environments import PYTHON, TORCH
from tests.test_wheel import LEFT_OUT

pytestmark = pytest.mark.cluster

#: Nothing else is of this version.
VERSION = "99.1"


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of this project's engine in another version."""
    source, wheels, pinned = tmp_path / "source", tmp_path / "wheels", tmp_path / "pinned.txt"
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    (source / "harness" / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    pinned.write_text(f"rosebench=={VERSION}\n")
    (tmp_path / "cache-here" / "engines").mkdir(parents=True)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache-here"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    recipe = BundleRecipe(python=PYTHON, torch=TORCH, wheels=pinned.name)
    return install.make_bundle(
        "roseinfer", VERSION, recipe, pinned.parent, tmp_path / "bundle", 1 << 20
    ).parent


def test_an_engine_is_started_from_a_bundle_that_was_unpacked_on_its_node(cluster, packed, tmp_path):
    cache = tmp_path / "cache-there"
    engines = cache / "engines"
    unpack = [sys.executable, str(packed / "unpack.py"), "--to", str(engines), "--python", sys.executable]
    subprocess.run(unpack, check=True, capture_output=True)
    node = cluster.add_node(
        num_cpus=1,
        resources={"unpacked": 1},
        object_store_memory=STORE_BYTES,
        env_vars={"BENCH_CACHE": str(cache)},
    )
    try:
        folder, results = measured(cluster="auto", engine_needs="unpacked:1", load_nodes=1, out=tmp_path)
    finally:
        cluster.remove_node(node)
    [launch] = results.meta.launches
    assert launch.version == VERSION and launch.argv[0] == str(engines / "roseinfer" / "bin" / "python")
    assert requests_of(folder)["error"].isna().all()
