"""What a reader must know about the code that was measured."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from harness.report.text.notice import Notice
from harness.report.text.numbers import several
from harness.runs.reader import Run
from harness.schema.run_info import LaunchRecord
from harness.telemetry.revision import DIRTY


def of_code(run: Run) -> list[Notice]:
    """Code that changed, that is not another as it should be, or that nobody can fetch."""
    return [*_changed(run), *_same(run), *_uncommitted(run)]


def is_uncommitted(run: Run) -> bool:
    """Whether the measured code is in no commit."""
    return (run.meta.versions.git_rev or "").endswith(DIRTY)


def _changed(run: Run) -> list[Notice]:
    """Repeats whose servers were started from different code."""
    changed = [launch for launch in run.meta.launches if len(_hashes(launch)) > 1]
    if not changed:
        return []
    title = f"The code of {several(launch.label for launch in changed)} changed during the run."
    detail = (
        f"Later starts found other files in {_folders(changed)}. Measure again, and change nothing meanwhile."
    )
    return [Notice("invalid", title, detail, "other")]


def _same(run: Run) -> list[Notice]:
    """Variants that were to run other code, and did not."""
    found = []
    for a, b in combinations(run.meta.launches, 2):
        is_meant = a.engine == b.engine and a.env.get("PYTHONPATH") != b.env.get("PYTHONPATH")
        if is_meant and a.codes and _hashes(a) == _hashes(b):
            title = f"{a.label} and {b.label} ran the same code."
            detail = (
                f"Their PYTHONPATH differs, the files found in {_folders((a, b))} do not. Check the paths."
            )
            found.append(Notice("skipped", title, detail, "other"))
    return found


def _hashes(launch: LaunchRecord) -> set[str]:
    return {code.sha256 for code in launch.codes}


def _folders(launches: Iterable[LaunchRecord]) -> str:
    return several(dict.fromkeys(code.folder for launch in launches for code in launch.codes))


def _uncommitted(run: Run) -> list[Notice]:
    """Code that nobody can fetch."""
    if not is_uncommitted(run):
        return []
    revision = run.meta.versions.git_rev or ""
    detail = (
        f"It was commit {revision.removesuffix(DIRTY)[:12]} with changes that were not committed, so the "
        "same code cannot be measured again. Commit first, then measure."
    )
    return [Notice("load", "The measured code was not committed.", detail, "code")]
