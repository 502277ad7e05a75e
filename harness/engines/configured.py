"""What is written down about an engine: the file that comes with it, and the user's own.

The user's is the file that `BENCH_ENGINES` names, else `~/.config/rosebench/engines.yaml`. By engine it holds
where that lives, what is set when it runs, and more variants:

    vllm: {python: /path/to/venv/bin/python, env: {PYTHONPATH: /path}}
    roseinfer: {variants: {small-blocks: {label: small blocks, args: [--block-size, "8"]}}}
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
from pydantic import Field, TypeAdapter, ValidationError

from harness.engines.base import Engine
from harness.engines.engine_names import check_name
from harness.engines.variants import Variant, load_file
from harness.errors import UsageError
from harness.schema.base import Strict, first_fault
from harness.schema.engine_ref import EngineName
from harness.schema.yaml_file import read_yaml


class UserEngine(Strict):
    """One engine, as a user writes it down."""

    python: Path | None = Field(None, description="the interpreter of the engine's environment")
    env: dict[str, str] = Field(default_factory=dict, description="set whenever the engine runs")
    variants: dict[str, Variant] = Field(
        default_factory=dict, description="in addition to those that come with the engine"
    )


_FILE = TypeAdapter(dict[EngineName, UserEngine])


def user_file() -> Path:
    """The file that `BENCH_ENGINES` names, else the one in the user's configuration folder."""
    if named := os.environ.get("BENCH_ENGINES"):
        return Path(named).expanduser()
    return platformdirs.user_config_path("rosebench") / "engines.yaml"


def user_engine(engine: EngineName) -> UserEngine:
    """What the user wrote down about the engine.

    Raises:
        UsageError: `BENCH_ENGINES` names a file that is not there, or the file cannot be read.
    """
    path = user_file()
    if not path.exists():
        if "BENCH_ENGINES" in os.environ:
            raise UsageError(f"BENCH_ENGINES names {path}, which does not exist", "correct or unset it")
        return UserEngine()
    try:
        known = _FILE.validate_python(read_yaml(path, "correct the file") or {})
    except ValidationError as error:
        keys, settings = (", ".join(kind.model_fields) for kind in (UserEngine, Variant))
        raise UsageError(
            f"{path}: {first_fault(error)}", f"an engine has the keys {keys}; a variant {settings}"
        ) from None
    for name in known:
        try:
            check_name(name)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", error.hint) from None
    return known.get(engine, UserEngine())


def load_variants(engine: Engine) -> dict[str, Variant]:
    """The variants of an engine by name, those that come with it and the user's.

    Raises:
        UsageError: a file cannot be read, or a name is in both.
    """
    known, own = load_file(engine.config_file).variants, user_engine(engine.name).variants
    if twice := sorted(known.keys() & own.keys()):
        raise UsageError(
            f"{user_file()} has a variant {engine.name}@{twice[0]}, which comes with the engine too",
            "give it another name",
        )
    return known | own


def find_variant(engine: Engine, name: str | None) -> Variant:
    """The variant of that name; without a name the engine as it is.

    Raises:
        UsageError: there is no such variant; the message lists those there are.
    """
    if name is None:
        return Variant()
    variants = load_variants(engine)
    if name not in variants:
        known = ", ".join(f"{engine.name}@{known}" for known in sorted(variants)) or "none"
        raise UsageError(
            f"{engine.name} has no variant {name!r}", f"known: {known}; your own go into {user_file()}"
        )
    return variants[name]
