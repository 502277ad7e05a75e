"""`bench offline`: throughput of a fixed batch through each engine's own API."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.table import Table

from harness.cli.options import with_settings
from harness.offline.run import Measuring, run_offline
from harness.spec.results import OfflineResult, OfflineResults, Skipped
from harness.spec.settings import OfflineSettings

FAILED = 3


@with_settings(OfflineSettings)
def offline(settings: OfflineSettings) -> None:
    """Throughput of a fixed batch of token-id prompts through each engine's in-process API."""
    console = Console(highlight=False, soft_wrap=True)

    def tell(event: Measuring | OfflineResult | Skipped) -> None:
        match event:
            case Measuring():
                what = f"{event.label}, repeat {event.repeat}; log: {event.log}"
                console.print(f"{event.index + 1}/{event.total} {what}", markup=False)
            case OfflineResult():
                console.print(f"    {event.output_tok_per_s:,.0f} output tok/s in {event.total_s:.3f} s")
            case Skipped():
                mend = f"\n    mend: {event.mend}" if event.mend else ""
                console.print(f"    {event.label} left out: {event.reason}{mend}", markup=False)

    folder, results = run_offline(settings, ["bench", *sys.argv[1:]], tell)
    console.print(table(results))
    console.print(f"results: {folder / 'offline_results.json'}", markup=False)
    if not results.results or any(skip.repeat is not None for skip in results.skipped):
        raise typer.Exit(FAILED)


def table(results: OfflineResults) -> Table:
    """The rows as measured, one for each engine and repeat."""
    columns = ("engine", "repeat", "req/s", "output tok/s", "total tok/s", "total latency (s)")
    shown = Table(*columns, box=None, header_style="bold")
    for row in results.results:
        shown.add_row(
            row.label,
            str(row.repeat),
            f"{row.req_per_s:.2f}",
            f"{row.output_tok_per_s:,.1f}",
            f"{row.total_tok_per_s:,.1f}",
            f"{row.total_s:.3f}",
        )
    return shown
