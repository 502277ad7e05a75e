"""`bench offline`: throughput of a fixed batch through each engine's own API."""

from __future__ import annotations

import sys

from harness.cli.options import with_settings
from harness.cli.outcome import Json, Open, Quiet, conclude
from harness.cli.profile import profile_alone, profile_behind
from harness.cli.progress import make_display
from harness.errors import EngineError
from harness.offline.run import run_offline
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
        fault = profile_behind(folder, settings.profile, display) if settings.profile else None
    display.tables(results)
    conclude(results, report, fault, as_json=as_json, open_report=open_report)
