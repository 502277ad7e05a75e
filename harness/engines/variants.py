"""Engines by name, and what is written down about each: the file that comes with it, and the user's own.

A package adds an engine through an entry point of the group `rosebench.engines` that names its class, a
`harness.engines.base.Engine`. `configs/engines/NAME.yaml` has the variants of an engine and how its
environments are made. The user's file is the one that `BENCH_ENGINES` names, else
`~/.config/rosebench/engines.yaml`. By engine it holds its place, its environment, and more variants:

    vllm: {python: /path/to/venv/bin/python, env: {PYTHONPATH: /path}}
    roseinfer: {variants: {small-blocks: {label: small blocks, args: [--block-size, "8"]}}}
"""

from __future__ import annotations

import os
from datetime import date
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import platformdirs
from pydantic import AfterValidator, Field, JsonValue, PositiveInt, TypeAdapter, ValidationError

from harness import paths
from harness.errors import UsageError, did_you_mean
from harness.plain_text import one_line
from harness.plugins import find_plugins
from harness.schema.base import Strict, first_fault
from harness.schema.files import read_yaml
from harness.schema.setting_types import EngineName

if TYPE_CHECKING:
    from harness.engines.base import Engine

CONFIGS = paths.DATA / "configs" / "engines"
#: How torch itself is packed, for engines that pin another than their host has.
TORCH_CONFIG = CONFIGS / "torch.yaml"


Build = Literal["cpu", "cuda"]


class Recipe(Strict):
    """A virtual environment. In requirements, `{version}` is the engine's version."""

    version: str = Field(description="installed by default")
    packages: list[str] = Field(description="requirements, installed with their dependencies")
    requirements: str | None = Field(None, description="a requirements file next to the YAML file")
    alone: list[str] = Field([], description="requirements installed afterwards, without their dependencies")
    env: dict[str, str] = Field({}, description="set while packages are installed")
    remove: list[str] = Field([], description="distributions removed afterwards")
    shims: list[str] = Field([], description="files next to the YAML file, copied into site-packages")


class BundleRecipe(Strict):
    """An engine, or the torch of several, for a host that has Python and no package index."""

    python: str = Field(description="version of the host's CPython, e.g. 3.12")
    torch: str = Field(
        description="version of torch it runs on, as a prefix, e.g. 2.11: the host's, or that of a bundle of "
        "torch; empty in the bundle of torch"
    )
    wheels: str = Field(description="a file of pinned requirements next to the YAML file")
    drop: list[str] = Field([], description="globs of files and folders left out")
    architecture: int | None = Field(
        None, description="the CUDA architecture whose code libraries keep, e.g. 90; null: all"
    )
    relink: dict[str, str] = Field(
        {}, description="names of libraries that its own load, and what they load instead"
    )
    links: dict[str, str] = Field(
        {}, description="places in it, and the host's package files that they lead to"
    )
    paths: list[str] = Field([], description="folders in it that Python searches, too")
    env: dict[str, str] = Field({}, description="variables of its Python")


class Variant(Strict):
    """Settings laid over an engine's defaults. The empty one is the engine as it is."""

    label: Annotated[str, AfterValidator(one_line)] = Field(
        "", description="what is in parentheses after the engine's name"
    )
    about: Annotated[str, AfterValidator(one_line)] = Field(
        "", description="one sentence: what it does, or why the engine needs it; shown in reports"
    )
    args: list[str] = Field([], description="appended to the server's command line")
    env: dict[str, str] = Field({}, description="environment of server and offline worker")
    body: dict[str, JsonValue] = Field(
        {}, description="fields of every request, in place of those of the same name"
    )
    prefix_cache: bool | None = Field(None, description="overrides --prefix-cache for this variant")
    cpu_threads: PositiveInt | Literal["all"] | None = Field(
        None, description="overrides --cpu-threads for this variant; all: one on each physical core"
    )
    tensor_parallel_size: PositiveInt | None = Field(
        None, description="overrides --tensor-parallel-size for this variant"
    )
    data_parallel_size: PositiveInt | None = Field(
        None, description="overrides --data-parallel-size for this variant"
    )
    offline: dict[str, JsonValue] | None = Field(
        {},
        description="arguments of the engine's in-process API, without which a variant with args is not "
        "measured there; null: not a thing of offline runs",
    )


class EngineFile(Strict):
    """The whole of one `configs/engines/NAME.yaml`."""

    variants: dict[str, Variant] = Field({})
    environments: dict[Build, Recipe] = Field({})
    released: dict[str, date] = Field(
        {}, description="day of release by version, as far as known; the newest is the last"
    )
    bundles: dict[str, BundleRecipe] = Field(
        {}, description="by version of the engine; the first is the default"
    )


_VARIANT_KEYS = f"a variant has the keys {', '.join(Variant.model_fields)}"
Content = TypeVar("Content")


def load_file(path: Path) -> EngineFile:
    """An engine's file; an empty one where there is none.

    Raises:
        UsageError: the file is not YAML, or has a key that is not known.
    """
    return _read(path, TypeAdapter(EngineFile), _VARIANT_KEYS) if path.exists() else EngineFile()


def _read(path: Path, kind: TypeAdapter[Content], hint: str) -> Content:
    try:
        return kind.validate_python(read_yaml(path, "correct the file") or {})
    except ValidationError as error:
        raise UsageError(f"{path}: {first_fault(error)}", hint) from None


GROUP = "rosebench.engines"


@cache
def engine_points() -> dict[str, EntryPoint]:
    """Return the entry point of each engine's class. Raises UsageError when two packages use one name."""
    return find_plugins(GROUP)


def check_name(name: str) -> None:
    """Raises UsageError when there is no such engine."""
    points = engine_points()
    if name not in points:
        meant = did_you_mean(name.lower(), points, cutoff=0.65)
        raise UsageError(f"there is no engine {name!r}", f"{meant}known: {', '.join(points)}")


class UserEngine(Strict):
    """One engine, as a user writes it down."""

    python: Path | None = Field(None, description="the interpreter of the engine's environment")
    env: dict[str, str] = Field({}, description="set whenever the engine runs")
    variants: dict[str, Variant] = Field({}, description="in addition to those that come with the engine")


_USER_FILE = TypeAdapter(dict[EngineName, UserEngine])


def user_file() -> Path:
    """The file that `BENCH_ENGINES` names, else the one in the user's configuration folder."""
    if named := os.environ.get("BENCH_ENGINES"):
        return Path(named).expanduser()
    return platformdirs.user_config_path("rosebench") / "engines.yaml"


def user_engine(engine: EngineName) -> UserEngine:
    """Return the user's settings of the engine.

    Raises:
        UsageError: `BENCH_ENGINES` names a file that is not there, or the file cannot be read.
    """
    path = user_file()
    if not path.exists():
        if "BENCH_ENGINES" in os.environ:
            raise UsageError(f"BENCH_ENGINES names {path}, which does not exist", "correct or unset it")
        return UserEngine()
    keys = ", ".join(UserEngine.model_fields)
    engines = _read(path, _USER_FILE, f"an engine has the keys {keys}; {_VARIANT_KEYS}")
    for name in engines:
        try:
            check_name(name)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", error.hint) from None
    return engines.get(engine, UserEngine())


def load_variants(engine: Engine) -> dict[str, Variant]:
    """The variants of an engine by name, those that come with it and the user's.

    Raises:
        UsageError: a file cannot be read, or a name is in both.
    """
    variants, user_variants = load_file(engine.config_file).variants, user_engine(engine.name).variants
    if twice := sorted(variants.keys() & user_variants.keys()):
        raise UsageError(
            f"{user_file()} has a variant {engine.name}@{twice[0]}, which comes with the engine too",
            "give it another name",
        )
    return variants | user_variants


def find_variant(engine: Engine, name: str | None) -> Variant:
    """The variant of that name; without a name the engine as it is.

    Raises:
        UsageError: there is no such variant; the message lists those there are.
    """
    if name is None:
        return Variant()
    variants = load_variants(engine)
    if name not in variants:
        names = ", ".join(f"{engine.name}@{variant}" for variant in sorted(variants)) or "none"
        raise UsageError(
            f"{engine.name} has no variant {name!r}", f"known: {names}; your own go into {user_file()}"
        )
    return variants[name]
