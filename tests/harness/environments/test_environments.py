"""Environments are whole or not there; what was packed is laid out again by standard-library Python."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.engines.base import Installation
from harness.engines.registry import LOCAL
from harness.engines.variants import TORCH_CONFIG, BundleRecipe, EngineFile, Recipe, load_file
from harness.environments import install, unpack
from harness.environments.install import run
from harness.environments.slim import ELF, PTX, relink, slim
from harness.errors import EngineError, UsageError

pytestmark = pytest.mark.integration

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH = torch.__version__.partition("+")[0].rpartition(".")[0]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A package index with one wheel, an importable package `sglang` 9.1."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    module, info = "sglang/srt/entrypoints/http_server.py", "sglang-9.1.dist-info"
    files = {
        "sglang/__init__.py": "",
        "sglang/unused.so": "x" * 100_000,
        module: "ANSWER = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 9.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"sglang/__init__.py,,\n{module},,\nsglang/unused.so,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(folder / "sglang-9.1-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no network, an index with only that wheel, and a torch that is imported at once."""
    folder = tmp_path / "cache" / "engines"
    folder.mkdir(parents=True)
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "torch.py").write_text(f"__version__ = {torch.__version__!r}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "host"))
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch):
    """SGLang, installed from the wheel alone."""
    recipe = Recipe(version="9.1", packages=["sglang=={version}"], shims=["shims/torchvision_ops.py"])
    monkeypatch.setattr(install, "load_file", lambda path: EngineFile(environments={"cpu": recipe}))
    monkeypatch.setattr(type(LOCAL["sglang"]), "needs", ())
    return LOCAL["sglang"]


def test_an_installation_counts_when_it_runs(cache: Path, engine, monkeypatch: pytest.MonkeyPatch):
    """First there is no network, then the package does not run, then the installation succeeds."""
    with monkeypatch.context() as offline:
        offline.delenv("PIP_NO_INDEX")
        offline.delenv("PIP_FIND_LINKS")
        offline.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        with pytest.raises(EngineError, match="no package index can be reached") as raised:
            install.install(engine, "cpu")
    assert "PIP_INDEX_URL" in raised.value.hint and "bundle" in raised.value.hint
    assert install.unfinished("sglang") == [cache / "sglang-9.1-cpu"]

    with monkeypatch.context() as broken:
        broken.setattr(type(engine), "module", "sglang.no_such_module")
        with pytest.raises(EngineError, match="does not run: ModuleNotFoundError"):
            install.install(engine, "cpu")
    assert not (cache / "sglang").exists()

    made = install.install(engine, "cpu")
    found = engine.find()
    assert isinstance(found, Installation)
    assert (found.version, found.how) == ("9.1", "engines/sglang in the cache")
    assert install.unfinished("sglang") == []
    lock = (cache / "sglang-9.1-cpu" / "lock.txt").read_text().splitlines()
    assert lock[0] == "# sglang 9.1 for cpu"
    assert "sglang==9.1" in lock
    assert not [line for line in lock if line.startswith("rosebench")]
    assert list(cache.glob("sglang-9.1-cpu/lib/python3*/site-packages/torchvision_ops.py"))
    assert install.install(engine, "cpu") == made


def test_two_at_once(cache: Path, engine):
    (cache / "sglang-9.1-cpu").mkdir()
    held = os.open(cache / "sglang-9.1-cpu", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process"):
        install.install(engine, "cpu")
    os.close(held)


def test_llamacpp_is_compiled_without_what_nobody_runs(tmp_path: Path):
    recipe = install.find_recipe(LOCAL["llamacpp"], "cpu")
    run("showing", ["/bin/sh", "-c", "echo $CMAKE_ARGS"], tmp_path / "log", recipe.env)
    assert "-DLLAMA_BUILD_TESTS=OFF" in (tmp_path / "log").read_text()


def test_what_cannot_be_installed():
    with pytest.raises(UsageError, match="roseinfer cannot be installed for cpu"):
        install.find_recipe(LOCAL["roseinfer"], "cpu")
    with pytest.raises(UsageError, match="trtllm cannot be installed for cpu") as raised:
        install.find_recipe(LOCAL["trtllm"], "cpu")
    assert raised.value.hint == "choose --cuda"


def test_a_bundle_is_laid_out_whole_or_not_at_all(tmp_path: Path, cache: Path):
    """Once by a host with the real torch."""
    pinned = tmp_path / "pinned.txt"
    pinned.write_text("sglang==9.1\n")
    recipe = BundleRecipe(python=PYTHON, torch=TORCH, wheels=pinned.name, drop=["sglang/unused.so"])
    packed = install.make_bundle("sglang", "9.1", recipe, tmp_path, tmp_path / "out", 300).parent
    text = (packed / "bundle.json").read_text()
    manifest = json.loads(text)
    sizes = [part["bytes"] for part in manifest["parts"]]
    assert len(sizes) > 1 and max(sizes) <= 300

    (packed / "bundle.json").write_text(json.dumps(manifest | {"torch": "1.0"}))
    with pytest.raises(unpack.UnpackError, match=r"with torch 1\.0"):
        unpack.unpack(packed, cache, sys.executable)
    (packed / "bundle.json").write_text(text)
    (packed / "part-00").rename(packed / "away")
    whole = (packed / "part-01").read_bytes()
    (packed / "part-01").write_bytes(whole[:-1])
    with pytest.raises(unpack.UnpackError, match="part-00 is missing, part-01 is damaged"):
        unpack.unpack(packed, cache, sys.executable)
    assert not list(cache.glob("sglang*/")) and not (cache / "sglang").exists()

    (packed / "away").rename(packed / "part-00")
    (packed / "part-01").write_bytes(whole)
    script = [sys.executable, "-S", str(packed / "unpack.py"), "--to", str(cache), "--python", sys.executable]
    real = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(script, capture_output=True, text=True, check=True, env=real)
    assert done.stdout.strip() == str(cache / "sglang-9.1" / "bin" / "python")
    assert not list(cache.glob("sglang-9.1/site/sglang/unused.so"))
    found = LOCAL["sglang"].find()
    assert isinstance(found, Installation)
    assert found.version == "9.1"
    ask = "from sglang.srt.entrypoints.http_server import ANSWER; print(ANSWER)"
    assert subprocess.run([found.python, "-c", ask], capture_output=True, check=True).stdout == b"42\n"

    junk = b"no xz"  # whole by its manifest, and cannot be unpacked
    (packed / "part-00").write_bytes(junk)
    part = {"name": "part-00", "bytes": len(junk), "sha256": hashlib.sha256(junk).hexdigest()}
    (packed / "bundle.json").write_text(json.dumps(manifest | {"parts": [part]}))
    with pytest.raises(unpack.UnpackError, match="is damaged"):
        unpack.unpack(packed, cache, sys.executable)
    assert subprocess.run([found.python, "-c", ask], capture_output=True, check=True).stdout == b"42\n"


@pytest.mark.parametrize("text", [None, "{}", "[]", "{"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(unpack.UnpackError, match=r"no bundle\.json" if text is None else "is incomplete"):
        unpack.unpack(tmp_path, tmp_path / "engines", sys.executable)


def packed(folder: Path, members: list[tarfile.TarInfo], content: bytes = b"", **changes: Any) -> Path:
    """Write a bundle whose archive has these members, with `content` and zeros after it."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(content.ljust(member.size, b"\0")))
    unpacked = len(lzma.decompress(archive.getvalue()))
    (part := folder / "part-00").write_bytes(content := archive.getvalue())
    parts = [{"name": part.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}]
    manifest = {"engine": "sglang", "version": "9.1", "python": PYTHON, "torch": TORCH, "unpacked": unpacked}
    manifest |= {"parts": parts, "links": {}, "paths": [], "env": {}}
    (folder / "bundle.json").write_text(json.dumps(manifest | changes))
    return folder


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "/victim"},
        {"version": "1/../../victim"},
        {"version": ".."},
        {"parts": [{"name": "../part", "bytes": 1, "sha256": "0"}]},
        {"parts": 7},
        {"parts": [{}]},
        {"torch": None},
        {"engine": 7},
        {"unpacked": "much"},
        {"unpacked": 1 << 60},
        {"links": {"../victim/precious": "pip"}},
        {"links": {"pip": "/etc/passwd"}},
        {"links": {"pip": "no-such-package"}},
        {"paths": ["/victim"]},
        {"env": {"A=1; rm": "x"}},
    ],
    ids=str,
)
def test_a_manifest_names_no_place_elsewhere(tmp_path: Path, cache: Path, changes: dict[str, Any]):
    (victim := tmp_path / "victim").mkdir()
    (victim / "precious").touch()
    bundle = packed(tmp_path, [member("sglang")], **changes)
    with pytest.raises(unpack.UnpackError):
        unpack.unpack(bundle, cache, sys.executable)
    assert list(cache.iterdir()) == [] and list(victim.iterdir()) == [victim / "precious"]


@pytest.mark.parametrize(
    "bad",
    [
        member("../evil"),
        member("/evil"),
        member("a/../../evil"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("link", tarfile.SYMTYPE, link="inside"),
        member("link", tarfile.LNKTYPE, link="first"),
        member("large", size=1 << 20),
    ],
    ids=lambda bad: f"{bad.name} of type {int(bad.type)}",
)
def test_a_bad_member_leaves_nothing(tmp_path: Path, cache: Path, bad: tarfile.TarInfo):
    changes: dict[str, Any] = {"unpacked": 9999} if bad.size else {}
    bundle = packed(tmp_path, [member("first"), bad], **changes)
    with pytest.raises(unpack.UnpackError, match="the bundle has"):
        unpack.unpack(bundle, cache, sys.executable)
    assert list(cache.iterdir()) == []


def test_an_environment_that_no_bundle_made_stays(tmp_path: Path, cache: Path):
    (cache / "sglang-9.1" / "lib").mkdir(parents=True)
    with pytest.raises(unpack.UnpackError, match="is of no bundle"):
        unpack.unpack(packed(tmp_path, [member("sglang")]), cache, sys.executable)
    assert (cache / "sglang-9.1" / "lib").exists()


def test_an_interruption_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "extractall", interrupt)
    with pytest.raises(KeyboardInterrupt):
        unpack.unpack(packed(tmp_path, [member("sglang")]), cache, sys.executable)
    assert list(cache.iterdir()) == []


def test_sizes():
    sizes = {"45M": 45 * 2**20, "7": 7, "2G": 2**31}
    assert {text: install.read_size(text) for text in sizes} == sizes
    for text in ("", "M", "0", "45MB", "-1"):
        with pytest.raises(UsageError, match="not a size"):
            install.read_size(text)


def test_an_engine_runs_on_the_torch_of_another_bundle(tmp_path, cache, monkeypatch):
    """The engine comes first on the path, then its own folders, then the torch that several share."""
    source = b"__version__ = '9.9.1+cu130'\n"
    (torch_bundle := tmp_path / "t").mkdir()
    links, variables = {"beside": "pip"}, {"SKIPPED_CHECK": "it's"}
    member_of_torch = member("torch.py", size=len(source))
    named = {"engine": "torch", "version": "9.9.1", "torch": ""}
    packed(torch_bundle, [member_of_torch], source, links=links, env=variables, **named)
    (engine_bundle := tmp_path / "e").mkdir()
    packed(engine_bundle, [member("inside/sub.py")], torch="9.9.1", paths=["inside"])
    with pytest.raises(unpack.UnpackError, match="unpack the bundle of that torch first"):
        unpack.unpack(engine_bundle, cache, sys.executable)
    unpack.unpack(torch_bundle, cache, sys.executable)
    monkeypatch.delenv("PYTHONPATH")  # with a torch for all
    python = unpack.unpack(engine_bundle, cache, sys.executable) / "bin" / "python"
    ask = "import sub, torch, os; print(torch.__version__, os.environ['SKIPPED_CHECK'], sub.__file__)"
    done = subprocess.run(
        [python, "-c", ask], capture_output=True, text=True, check=True, env={"PYTHONPATH": "/away"}
    )
    assert done.stdout.split() == ["9.9.1+cu130", "it's", str(cache / "sglang-9.1/site/inside/sub.py")]
    assert (cache / "torch-9.9.1" / "site" / "beside" / "__init__.py").exists()


def _code(kind: int, architecture: int, content: bytes) -> bytes:
    return struct.pack("<HHIQ12xI", kind, 257, 32, len(content), architecture) + content


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ([(ELF, 80), (ELF, 90), (PTX, 90)], [(ELF, 90)]),
        ([(ELF, 80), (PTX, 80), (PTX, 100)], [(PTX, 80)]),
        ([(ELF, 100), (PTX, 100)], []),
        ([(ELF, 86), (ELF, 80)], []),
    ],
    ids=["its own", "compiled there", "newer", "older generation"],
)
def test_a_library_keeps_the_code_of_one_gpu(tmp_path, entries, kept):
    contents = [f"{kind}/{architecture}".encode() for kind, architecture in entries]
    zipped = zip(entries, contents, strict=True)
    body = b"".join(_code(kind, architecture, content) for (kind, architecture), content in zipped)
    library = tmp_path / "lib.so"
    library.write_bytes(
        b"before" + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body + b"\x50\xed\x55\xba"
    )
    size = library.stat().st_size
    zeroed = slim(library, 90)
    left = library.read_bytes()
    assert [entry for entry, content in zip(entries, contents, strict=True) if content in left] == kept
    assert len(left) == size and left.startswith(b"before")
    assert zeroed == sum(map(len, contents)) - sum(len(f"{kind}/{number}") for kind, number in kept)


def test_a_library_loads_another(tmp_path: Path):
    """Of a file with a table of three sections: text, the versions that it needs, and none."""
    text, hashes = b"\0libcublas.so.12\0libother.so.12\0", struct.pack("<2I", 0x0EF62132, 7)
    sections = [(3, 64, len(text), 0), (0x6FFFFFFE, 64 + len(text), len(hashes), 0), (0, 0, 0, 0)]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, start, size, link, 0, 0, 0)
        for kind, start, size, link in sections
    )
    header = struct.pack("<40xQ10xHHxx", 64 + len(text) + len(hashes), 64, len(sections))
    library = tmp_path / "lib.so"
    library.write_bytes(header + text + hashes + table)
    assert relink(library, "libcublas.so.12", "libcublas.so.13") == 1
    expected = text.replace(b"cublas.so.12", b"cublas.so.13") + struct.pack("<2I", 0x0EF62133, 7)
    assert library.read_bytes() == header + expected + table


def test_bundles_that_are_known():
    config = LOCAL["vllm"].config_file
    assert install.find_bundle("vllm", config, None)[0] == "0.33.0"
    with pytest.raises(UsageError, match=r"vllm 9 cannot be bundled"):
        install.find_bundle("vllm", config, "9")
    with pytest.raises(UsageError, match="roseinfer has no bundle recipe"):
        install.find_bundle("roseinfer", LOCAL["roseinfer"].config_file, None)


def test_every_torch_that_a_bundle_needs_has_a_recipe():
    """Torch 2.11 is the host's own."""
    needed = {
        recipe.torch for engine in LOCAL.values() for recipe in load_file(engine.config_file).bundles.values()
    }
    assert {version for version in needed if version.count(".") == 2} == set(load_file(TORCH_CONFIG).bundles)


@pytest.mark.parametrize(
    "config", [TORCH_CONFIG, *(engine.config_file for engine in LOCAL.values())], ids=lambda path: path.stem
)
def test_every_file_that_a_recipe_names_is_there(config: Path):
    file = load_file(config)
    lists = [pinned.requirements for pinned in file.environments.values() if pinned.requirements]
    lists += [pinned.wheels for pinned in file.bundles.values()]
    assert all((config.parent / path).is_file() for path in lists)
    shims = [shim for pinned in file.environments.values() for shim in pinned.shims]
    assert all((config.parent / shim).is_file() for shim in shims)
