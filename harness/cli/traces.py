"""`bench traces`: lists, describes, downloads and converts traces."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Column, Table

from harness.cli.terminal import Terminal
from harness.cli.terminal_table import listing
from harness.errors import UsageError
from harness.files import write_whole
from harness.metrics.digits import per_cent
from harness.traces import builtin, catalog, csv_formats
from harness.traces.trace import Statistics, describe

app = typer.Typer(no_args_is_help=True, help="List, describe, download and convert traces.")
console = Terminal()

NameOrPath = Annotated[str, typer.Argument(help="name from `bench traces list`, or a file")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command("list")
def list_(json: AsJson = False) -> None:
    """List the traces with a name, and whether they are on this machine."""
    rows: list[tuple[str, bool, str, str, str | None]] = [
        (builtin.NAME, True, "Apache-2.0", builtin.ORIGIN, builtin.ORIGIN),
        *(
            (entry.name, catalog.is_here(entry), entry.licence, entry.origin, entry.note)
            for entry in catalog.entries().values()
        ),
    ]
    if json:
        names = ("name", "here", "licence", "origin", "note")
        console.print_json(data=[dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [(name, "yes" if here else "no", licence, note or "") for name, here, licence, _, note in rows]
    console.print(listing("Traces", ("trace", "here", "licence", "note"), shown))


@app.command()
def info(trace: NameOrPath = builtin.NAME, json: AsJson = False) -> None:
    """Describe a trace: arrivals, lengths, shared prefixes, source and licence."""
    loaded = catalog.load(trace)
    figures = describe(loaded)
    if json:
        console.print_json(data=loaded.about | dataclasses.asdict(figures))
        return
    table = Table(Column(no_wrap=True), Column(overflow="fold"), show_header=False, box=None, pad_edge=False)
    for label, value in (*loaded.about.items(), *_figures(figures)):
        if value:
            table.add_row(label, value)
    console.print(table)


@app.command("fetch")
def fetch_(names: Annotated[list[str], typer.Argument(help="names from `bench traces list`")]) -> None:
    """Download public traces from their official sources into the cache."""
    for name in names:
        with ExitStack() as stack:
            path = catalog.fetch(name, progress=_on(stack, name))
        console.print(f"{name}: {path}", soft_wrap=True)


@app.command()
def convert(
    trace: NameOrPath,
    out: Annotated[Path, typer.Argument(help="CSV file to write")],
    n: Annotated[int | None, typer.Option("--n", min=1, help="only the first N requests")] = None,
) -> None:
    """Write a trace as this project's CSV: arrival_s,input_tokens,output_tokens[,session,prefix_blocks]."""
    if out.exists() and trace != builtin.NAME and out.samefile(catalog.file_of(trace)):
        raise UsageError(f"{out} is the trace itself", "write to another file")
    loaded = catalog.load(trace, None if n is None else lambda head: len(head) >= n)
    kept = loaded if n is None else loaded.head(n)
    write_whole(out, csv_formats.dump(kept))
    console.print(f"{out}: {len(kept):,} requests of {loaded.name}", soft_wrap=True)


def _figures(figures: Statistics) -> list[tuple[str, str]]:
    rows = [("requests", f"{figures.requests:,}"), ("span", f"{figures.span_s:,.1f} s")]
    if figures.rate is not None and figures.gap_cv is not None:
        rows.append(("arrivals", f"{figures.rate:.4g}/s, gap CV {figures.gap_cv:.2f}"))
    rows += [("input tokens", _lengths(figures.input)), ("output tokens", _lengths(figures.output))]
    if figures.sessions is not None:
        rows.append(("sessions", f"{figures.sessions:,}"))
    if figures.blocks is not None and figures.reuse is not None:
        rows.append(("prefix blocks", f"{figures.blocks:,}, {per_cent(figures.reuse, 1)} seen before"))
    return rows


def _lengths(lengths: dict[str, float]) -> str:
    return ", ".join(f"{name} {tokens:,.0f}" for name, tokens in lengths.items())


def _on(stack: ExitStack, name: str) -> catalog.Progress:
    """Shows a bar from the first bytes on: a trace that is here has none, and neither has a wrong name."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console)

    def show(received: int, total: int | None) -> None:
        if not bar.task_ids:
            stack.enter_context(bar).add_task(name, total=None)
        bar.update(bar.task_ids[0], completed=received, total=total)

    return show
