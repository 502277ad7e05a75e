"""How the engines of `bench offline` were asked."""

from __future__ import annotations

from collections.abc import Iterable

from harness.engines.registry import LOCAL
from harness.report.text.numbers import few
from harness.schema.results import BatchRow


def ways_asked(results: Iterable[BatchRow]) -> str:
    """`roseinfer through its server, all others in-process`; empty where all are in-process."""
    served = {result.label: _is_served(result) for result in results}
    labels = [label for label, through in served.items() if through]
    if not labels:
        return ""
    others = ", all others in-process" if len(labels) < len(served) else ""
    return f"{few(labels)} through its server{others}"


def _is_served(result: BatchRow) -> bool:
    """Tell whether it was measured through its server."""
    engine = LOCAL.get(result.engine)
    return engine is not None and engine.batches_by_server and not result.label.endswith("in-process)")
