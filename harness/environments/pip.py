"""Runs pip as a guarded process. An error says in one sentence why it failed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from harness.engines.process.tree import Guarded, tail
from harness.errors import EngineError

#: What pip prints if no package index answers.
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
)
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}


def run(what: str, argv: Sequence[str], log: Path, env: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a setup command to its end, with `env` added; its output is appended to `log`.

    Raises:
        EngineError: it failed. Without a network the hint says what to do.
    """
    process = Guarded(what, argv, os.environ | QUIET | dict(env), log)
    try:
        while (code := process.wait(60.0)) is None:
            pass
    finally:
        process.stop()
    if code == 0:
        return
    output = tail(log, lines=200, start=process.log_start)
    if any(sign in output for sign in NO_NETWORK):
        raise EngineError(
            f"{what}: no package index can be reached ({log})",
            "connect to a network or set PIP_INDEX_URL, and run the command again to continue; "
            "or pack the engine on another machine with `bench engines bundle`",
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines()[-3:]
    raise EngineError(f"{what} failed: {' '.join(errors[:3])}", f"see {log}")


def pip(
    what: str,
    python: Path,
    arguments: Sequence[str],
    log: Path,
    env: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run pip of that interpreter. Raises EngineError, as `run` does."""
    run(what, [str(python), "-m", "pip", *arguments, "--retries", "2"], log, env)
