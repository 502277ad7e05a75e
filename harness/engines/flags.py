"""Which options the installed version of an engine has, from its own help."""

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
from harness.errors import EngineError
from harness.files import write_whole

HELP_TIMEOUT_S = 180
#: Help that is laid out for a terminal cuts long options short on a narrow one.
WIDE = {"COLUMNS": "500"}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")


def supported_flags(installation: Installation, command: Sequence[str], keep: bool) -> frozenset[str]:
    """Every `--option` that the help names. With `keep` they stay in the project's cache: some take 12 s.

    Raises:
        EngineError: the help cannot be had.
    """
    what = json.dumps([installation.distribution, installation.version, *command])
    kept = CACHE / "flags" / f"{installation.engine}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.json"
    if keep and kept.exists():
        return frozenset(json.loads(kept.read_text()))
    flags = _ask(tuple(command), tuple(sorted(installation.env.items())))
    if keep:
        write_whole(kept, json.dumps(sorted(flags)).encode())
    return flags


@cache
def _ask(command: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> frozenset[str]:
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
            f"{' '.join(command)} does not work: {error}", "bench engines doctor says what is missing"
        ) from None
    return frozenset(_FLAG.findall(done.stdout))
