"""`bench online`: runs an online benchmark, shows its progress, prints the path of the report."""

from __future__ import annotations

from harness.cli.options import Json, Open, Quiet, Resume, Serve, with_settings
from harness.cli.trust import Trust
from harness.schema.online_settings import OnlineSettings

EXAMPLES = (
    "bench online --engines roseinfer,vllm --scales 0.4,0.8,1.6 --repeats 5",
    "bench online --base-url http://127.0.0.1:8000 --concurrency 1,8,64 --rounds 10",
    "bench online --engines vllm --concurrency 8 --slo ttft_ms=200,tpot_ms=50",
)


@with_settings(OnlineSettings)
def online(
    settings: OnlineSettings | None,
    resume: Resume = None,
    trust: Trust = False,
    serve: Serve = None,
    open_report: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure each engine's server under load: a trace, or a fixed number of requests in flight."""
    from harness.cli.measure import measure

    measure(settings, resume, serve=serve, trust=trust, open_report=open_report, as_json=as_json, quiet=quiet)
