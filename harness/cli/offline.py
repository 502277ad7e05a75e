"""`bench offline`: throughput of a fixed batch of prompts."""

from __future__ import annotations

from harness.cli.command_line import command_line
from harness.cli.measure import measure_and_report, print_end
from harness.cli.options import Resume, with_settings
from harness.cli.outcome import Json, Open, Quiet
from harness.cli.profile import profile_only
from harness.cli.progress import make_display
from harness.runs.events import Notify
from harness.runs.offline import batches_so_far, resume_offline, run_offline
from harness.schema.offline_settings import OfflineSettings

EXAMPLES = ("bench offline --engines roseinfer,vllm --num-prompts 128 --repeats 5",)


@with_settings(OfflineSettings, instead="resume")
def offline(
    settings: OfflineSettings | None,
    resume: Resume = None,
    open_report: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the throughput of a fixed batch of prompts, each engine in a process of its own.

    roseinfer is measured twice: through its server, as `roseinfer`, and as `roseinfer (in-process)`.
    """

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
