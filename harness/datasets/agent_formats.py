"""Jobs of coding agents by the format of their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.datasets import tracelab, weka
from harness.datasets.agent_jobs import AgentJobs
from harness.errors import UsageError

#: By the word before the colon: what reads a file or a folder, and what such files are.
FORMATS: dict[str, tuple[Callable[[Path], AgentJobs], str]] = {
    "weka": (weka.read_weka, weka.HINT),
    "tracelab": (tracelab.read_tracelab, tracelab.HINT),
}


def is_agent_jobs(dataset: str) -> bool:
    """Whether `--dataset` names jobs of agents: `weka:PLACE`, `tracelab:PLACE`."""
    return dataset.partition(":")[0] in FORMATS and ":" in dataset


def read_agent_jobs(dataset: str) -> AgentJobs:
    """The jobs that `FORMAT:PLACE` names. Raises UsageError where there are none, or a line is malformed."""
    kind, _, place = dataset.partition(":")
    read, hint = FORMATS[kind]
    path = Path(place).expanduser()
    found = read(path)
    if not found.jobs:
        raise UsageError(f"{path} has no job of an agent", hint)
    return found
