"""`bench offline`: throughput of a fixed batch through each engine's in-process API."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

from harness.cli.ending import print_ending, report_so_far
from harness.cli.options import with_settings
from harness.cli.outcome import Json, Open, Quiet, conclude
from harness.cli.profile import profile_after, profile_only
from harness.cli.progress import make_display
from harness.cli.refused import refused
from harness.errors import BenchError, EngineError, InterruptedRunError
from harness.report.render import write_outputs
from harness.runs.events import BatchDone, Event, Started
from harness.runs.offline import run_offline
from harness.runs.reader import OfflineRun, load_run
from harness.schema.offline_settings import OfflineSettings

EXAMPLES = ("bench offline --engines roseinfer,vllm --num-prompts 128 --repeats 5",)


@with_settings(OfflineSettings)
def offline(
    settings: OfflineSettings, open_report: Open = False, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Measure the throughput of a fixed batch of prompts through each engine's in-process API."""
    folder: Path | None = None
    measured = 0
    fault: BenchError | None = None
    so_far: tuple[OfflineRun, Path] | None = None
    with make_display(quiet) as display:

        def show(event: Event) -> None:
            nonlocal folder, measured
            if isinstance(event, Started):
                folder = event.folder
            measured += isinstance(event, BatchDone)
            display.show(event)

        if settings.profile_only:
            profile_only(settings, display)
            return
        try:
            if settings.preset_text is not None:
                display.line(settings.preset_text)
            folder, results = run_offline(settings, ["bench", *sys.argv[1:]], show)
        except KeyboardInterrupt:
            if folder is None:
                raise
            what = "interrupted; finished measurements are saved" if measured else "interrupted"
            fault = InterruptedRunError(what, _again(folder, measured))
            so_far = report_so_far(partial(_measured, folder), display) if measured else None
            if so_far is None:
                raise fault from None
        except BenchError as error:
            if folder is not None:
                error.hint = "; then ".join(filter(None, (error.hint, _again(folder, measured))))
            raise
        except OSError as error:
            raise (folder and refused(error, _again(folder, measured))) or error from None
        if so_far is not None:
            run, report = so_far
        elif not results.results:
            raise EngineError("nothing could be measured", f"see the logs in {folder / 'logs'}")
        else:
            run = _measured(folder)
            report = write_outputs(run)
        if fault is None and settings.profile:
            fault = profile_after(folder, settings.profile, display)
    print_ending(run, display)
    conclude(run.results, report, fault, as_json=as_json, open_report=open_report)


def _measured(folder: Path) -> OfflineRun:
    """The run whose results have just been written."""
    run = load_run(folder, trust=True)
    assert isinstance(run, OfflineRun)
    return run


def _again(folder: Path, measured: int) -> str:
    """What to do after a run that ended early. A batch cannot be resumed."""
    again, name = "run the command again", shlex.quote(str(folder))
    if not measured:
        return f"{again}; nothing was measured, the logs are in {name}"
    return f"{again}; `bench report {name}` shows what was measured"
