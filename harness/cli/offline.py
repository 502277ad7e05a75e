"""`bench offline`: throughput of a fixed batch of prompts."""

from __future__ import annotations

from harness.cli.options import Json, Open, Quiet, Resume, with_settings
from harness.cli.trust import Trust
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import OfflineSettings

EXAMPLES = ("bench offline --engines roseinfer,vllm --num-prompts 128 --repeats 5",)


@with_settings(OfflineSettings)
def offline(
    settings: OfflineSettings | None,
    resume: Resume = None,
    trust: Trust = False,
    open_report: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the throughput of a fixed batch of prompts, each engine in a process of its own.

    roseinfer is measured twice: through its server, as `roseinfer`, and as `roseinfer (in-process)`.
    """

    from harness.cli.measure import measure

    run_settings = None if settings is None else OnlineSettings.of_batch(settings)
    measure(run_settings, resume, trust=trust, open_report=open_report, as_json=as_json, quiet=quiet)
