"""`bench offline` once its settings are known, apart from the command as in `measure_online`."""

from __future__ import annotations

from pathlib import Path

from harness.cli.command_line import command_line
from harness.cli.measure import measure_and_report, print_end
from harness.cli.profile import profile_only
from harness.cli.progress import make_display
from harness.runs.events import Notify
from harness.runs.offline import batches_so_far, resume_offline, run_offline
from harness.schema.settings import OfflineSettings


def measure(
    settings: OfflineSettings | None, resume: Path | None, *, open_report: bool, as_json: bool, quiet: bool
) -> None:
    """Run, or finish the run `resume`, show its progress, print where the report is."""

    def begin(notify: Notify) -> None:
        if settings is not None:
            run_offline(settings, command_line(), notify)
        else:
            assert resume is not None
            resume_offline(resume, notify)

    with make_display(quiet) as display:
        if settings is not None and settings.profile_only:
            profile_only(settings, display)
            return
        if settings is not None and settings.preset_text is not None:
            display.line(settings.preset_text)
        ended = measure_and_report(begin, batches_so_far, display, display.show)
    print_end(ended, display, open_report=open_report, as_json=as_json)
