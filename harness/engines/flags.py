"""The options of the installed version of an engine, from its own help."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache

from harness.engines.base import Installation
from harness.engines.find import CACHE
from harness.errors import EngineError, failure_text
from harness.files import write_whole

HELP_TIMEOUT_S = 180
#: Some help texts cut long options on a narrow terminal.
WIDE = {"COLUMNS": "500"}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")


def supported_flags(installation: Installation, command: Sequence[str], keep: bool) -> frozenset[str]:
    """Every `--option` in the help. With `keep` the result is cached: some engines need 12 s for it.

    Raises:
        EngineError: the help command failed.
    """
    what = json.dumps([installation.distribution, installation.version, *command])
    cached = CACHE / "flags" / f"{installation.engine}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.json"
    if keep and cached.exists():
        return frozenset(json.loads(cached.read_text()))
    flags = _run_help(tuple(command), tuple(sorted(installation.env.items())))
    if keep:
        write_whole(cached, json.dumps(sorted(flags)).encode())
    return flags


@cache
def _run_help(command: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> frozenset[str]:
    try:
        done = subprocess.run(
            command,
            env=os.environ | dict(env) | WIDE,
            capture_output=True,
            text=True,
            timeout=HELP_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            f"`{' '.join(command)}` failed: {failure_text(error)}",
            "run `bench engines doctor` to see what is missing",
        ) from None
    return frozenset(_FLAG.findall(done.stdout))
