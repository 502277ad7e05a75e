"""`bench offline`: throughput of a fixed batch through each engine's own API."""

from __future__ import annotations

import sys

from harness.cli.options import with_settings
from harness.cli.outcome import Json, Open, Quiet, conclude
from harness.cli.profile import profile_alone, profile_folder
from harness.cli.progress import make_display
from harness.errors import EngineError
from harness.offline.run import run_offline
from harness.profiling.stage import ProfileOptions
from harness.reporting.report import write_run_outputs
from harness.spec.settings import OfflineSettings


@with_settings(OfflineSettings)
def offline(
    settings: OfflineSettings, open_report: Open = False, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Throughput of a fixed batch of token-id prompts through each engine's in-process API."""
    with make_display(quiet) as display:
        if settings.profile_only:
            profile_alone(settings, "offline", display)
            return
        folder, results = run_offline(settings, ["bench", *sys.argv[1:]], display.show)
        if not results.results:
            raise EngineError("nothing could be measured", f"see the logs in {folder / 'logs'}")
        report = write_run_outputs(folder)
        if settings.profile is not None:
            profile_folder(folder, None, ProfileOptions(settings.profile), display)
    display.tables(results)
    conclude(results, report, as_json=as_json, open_report=open_report)
