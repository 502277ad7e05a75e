"""Spaces of settings as files: those that come with `bench`, and the user's."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from harness import paths
from harness.engines.registry import LOCAL
from harness.errors import UsageError
from harness.schema.base import first_fault
from harness.schema.engine_ref import EngineName
from harness.schema.space import Space
from harness.schema.yaml_file import read_yaml

SPACES = paths.DATA / "configs" / "spaces"


def read_space(path: Path | None, engine: EngineName, device: str) -> Space:
    """The space in a file, or the one that comes with `bench`, without what the device does not have.

    Raises:
        UsageError: There is no such file, it is no space of this engine, nothing in it is for the device, or
            the installed version of the engine lacks an option.
    """
    file = path or SPACES / f"{engine}.yaml"
    if path is None and not file.exists():
        ready = ", ".join(sorted(ready.stem for ready in SPACES.glob("*.yaml")))
        raise UsageError(
            f"no space of settings comes with bench for {engine}", f"give --space FILE; ready: {ready}"
        )
    space = _parsed(file)
    if space.engine != engine:
        raise UsageError(
            f"{file} is a space of {space.engine}, not of {engine}", "name another file or engine"
        )
    here = space.on(device)
    if not here.parameters:
        what = f"has nothing for a {device} device" if space.parameters else "has neither args nor env"
        raise UsageError(f"{file} {what}", "name the values to try: args: {--option: [1, 2]}")
    local = LOCAL[engine]
    installation = local.installed()
    if here.args and (unknown := sorted(set(here.flags) - local.flags(installation))):
        raise UsageError(
            f"{file}: {local.display} {installation.version} has no option {', '.join(unknown)}",
            f"correct the file; `{' '.join(local.help_command(installation))}` lists the options",
        )
    return here


def _parsed(file: Path) -> Space:
    if not file.is_file():
        raise UsageError(f"{file} is not a file", "name a YAML file with engine, and args or env")
    try:
        return Space.model_validate(read_yaml(file, "correct the file") or {})
    except ValidationError as error:
        hint = "a space has engine, about, args and env; `bench schema space` prints it"
        raise UsageError(f"{file}: {first_fault(error)}", hint) from None
