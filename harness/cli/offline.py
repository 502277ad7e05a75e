"""`bench offline`: throughput of a fixed batch of prompts."""

from __future__ import annotations

from harness.cli.options import Output, with_settings
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import OfflineSettings

EXAMPLES = ("bench offline --engines roseinfer,vllm --num-prompts 128 --repeats 5",)
COMMON = (
    *("engines", "model", "dtype", "max_model_len", "tensor_parallel_size", "num_prompts", "input_len"),
    *("output_len", "ignore_eos", "repeats", "config", "out"),
)


@with_settings(OfflineSettings)
def offline(settings: OfflineSettings | None, output: Output) -> None:
    """Measure the throughput of a fixed batch of prompts, each engine in a process of its own.

    roseinfer is measured twice: through its server, as `roseinfer`, and as `roseinfer (in-process)`.
    """

    from harness.cli.measure import measure

    run_settings = None if settings is None else OnlineSettings.of_batch(settings)
    measure(run_settings, output)
