"""Wishes of files: engines with settings of their own, addresses, and secrets that are sent there.

A settings file, a space or a run may come from somebody else. What it asks for is shown, and `--trust`
accepts it: the user's cache then has a token of the file's path and of all that it asks for. A run that this
user begins has one from its start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from harness import paths
from harness.engines.variants import user_file
from harness.errors import UsageError
from harness.plain_text import one_line
from harness.runs.folder import RUN, read_info
from harness.schema.settings import CommonSettings, OutputGroup

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="do what the settings file or the run asks for: its own addresses, keys and settings of engines",
        rich_help_panel=OutputGroup.title,
    ),
]
#: Settings that say where something is sent, with what, and whom to believe.
_ADDRESSES = (
    "base_url", "server", "header", "api_key_env", "server_pid", "ca_cert", "cluster", "share", "body",
)  # fmt: skip
_WISHES = ("engines", *_ADDRESSES)
#: Variables by which a program takes code from elsewhere.
_LOADERS = re.compile(r"(LD|DYLD|PYTHON)[A-Z_]*|PATH|HOME|ENV|BASH_ENV|GCONV_PATH")
#: Wishes on one screen, and letters of each.
_MOST_LINES, _MOST_LETTERS = 20, 200


def check_trust(
    source: Path, settings: CommonSettings, trust: bool, names: Collection[str] = _WISHES
) -> None:
    """Check that the user wants what a file asks for. The project's own files and the user's may ask.

    Args:
        source: The settings file, the space or the folder of the run.
        settings: With what is in it.
        trust: The user wants it, now and from now on.
        names: Settings that are from it; others are from the command line.

    Raises:
        UsageError: It asks for something and is not trusted, or it sets a variable of loaders.
    """
    for ref in settings.engines if "engines" in names else ():
        if loaders := [name for name in ref.env if _LOADERS.fullmatch(name)]:
            names_text = ", ".join(loaders)
            raise UsageError(
                f"{source} sets {names_text} of {ref}, by which a program takes code from elsewhere",
                f"if you want it, set it in {user_file()}",
            )
    wishes = list(_wishes(settings, names))
    place = source.resolve()
    trusted = (paths.DATA / "configs").resolve(), platformdirs.user_config_path("rosebench").resolve()
    if not wishes or any(place.is_relative_to(folder) for folder in trusted):
        return
    digest = hashlib.sha256(json.dumps([str(place), wishes]).encode()).hexdigest()
    token = paths.cache_folder() / "trusted" / digest
    if trust:
        with suppress(OSError):  # then it is asked again
            token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            token.touch()
    elif not (token.exists() and token.stat().st_uid == os.getuid()):
        lines = [one_line(wish, _MOST_LETTERS) for wish in wishes[:_MOST_LINES]]
        lines += [f"… and {more} more" for more in [len(wishes) - len(lines)] if more]
        otherwise = "" if place.is_dir() else ", or give it on the command line"
        raise UsageError(
            "\n  ".join([f"{source} asks for this, and you did not:", *lines]),
            f"if you want it, add --trust{otherwise}",
        )


def check_run(folder: Path, trust: bool) -> None:
    """`check_trust` of a run; where there is none, whoever opens it says so."""
    if (folder / RUN).is_file():
        check_trust(folder, read_info(folder).settings, trust)


def _wishes(settings: CommonSettings, names: Collection[str]) -> Iterator[str]:
    for ref in settings.engines if "engines" in names else ():
        if words := [*(f"{name}={value}" for name, value in ref.env.items()), *ref.args]:
            yield f"{ref}: {shlex.join(words)}"
    for name, value in settings.model_dump(mode="json", include={*_ADDRESSES} & {*names}).items():
        if value:
            yield f"{name}: {value if isinstance(value, str) else json.dumps(value)}"
