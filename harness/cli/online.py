"""`bench online`: runs an online benchmark, shows its progress, prints the path of the report."""

from __future__ import annotations

from harness.cli.options import Output, with_settings
from harness.schema.online_settings import OnlineSettings

EXAMPLES = (
    "bench online --base-url http://127.0.0.1:8000 --concurrency 1,8,64 --rounds 10",
    "bench online --engines vllm,sglang --model FOLDER --concurrency 1,8,64 --rounds 10 --repeats 3",
    "bench online --trace azure-2023-conv-busy --scales 2,4 --slo 'ttft_p99<=200ms,tpot_p99<=50ms'",
)
#: Options of most uses.
COMMON = (
    *("engines", "model", "base_url", "concurrency", "rounds", "request_rate", "trace", "scales"),
    *("input_len", "output_len", "repeats", "slo"),
)


@with_settings(OnlineSettings)
def online(settings: OnlineSettings | None, output: Output) -> None:
    """Measure each engine's server under load: a trace, or a fixed number of requests in flight."""
    from harness.cli.measure import measure

    measure(settings, output)
