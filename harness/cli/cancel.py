"""`bench cancel`: what a departed client costs."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.options import Output, with_settings
from harness.cli.terminal import FAILED, Terminal, echo
from harness.errors import UsageError
from harness.schema.cancel import CancelResults, Median
from harness.schema.online_settings import OnlineSettings, ServerGroup
from harness.schema.settings import EngineGroup

EXAMPLES = (
    "bench cancel --engines roseinfer,vllm --model FOLDER",
    "bench cancel --base-url http://127.0.0.1:8000 --slots 1",
)
COMMON = ("after", "slots", "pairs", "engines", "model", "base_url", "input_len", "output_len", "out")

#: Settings that it has beside those of engines and servers.
_KEPT = {"input_len", "output_len", "text_prompts", "seed", "ignore_eos", "timeout_s", "deadline_s", "out"}
_OF_ENGINES = EngineGroup.__annotations__.keys() | ServerGroup.__annotations__.keys()
_OTHERS = (OnlineSettings.model_fields.keys() - _KEPT - _OF_ENGINES) | {"max_running_requests"}
#: Tokens of an answer whose client leaves, if nothing else is given.
ANSWER = 256


@with_settings(
    OnlineSettings,
    without=(*_OTHERS, "resume", "serve", "open_report"),
    derive=lambda values: {"concurrency": "1"},
)
def cancel(
    settings: OnlineSettings | None,
    output: Output,
    after: Annotated[
        str, typer.Option(help="chunks with tokens after which clients leave", metavar="LIST")
    ] = "16",
    slots: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="requests that a server runs at a time; engines that are started here are limited to it",
        ),
    ] = 1,
    pairs: Annotated[
        int, typer.Option(min=1, metavar="N", help="clients that leave, each beside an answer that ends")
    ] = 20,
) -> None:
    """Measure what clients that leave cost: time until a slot is free, tokens that nobody reads."""
    from harness.cli.command_line import clear_process_list, command_line
    from harness.cli.measure import Lookout
    from harness.cli.progress import make_display
    from harness.runs.cancel import CANCEL, measure_cancels

    assert settings is not None
    clear_process_list()
    counts = [int(text) if text.strip().isdecimal() else 0 for text in after.split(",")]
    if min(counts) < 2:
        raise UsageError(
            f"--after {after} is no list of numbers from 2 on", "give, for example, --after 2,16"
        )
    if "output_len" not in settings.model_fields_set:
        settings = settings.model_copy(update={"output_len": ANSWER})
    with make_display(output.quiet) as display:
        lookout = Lookout(display, not output.anyway)
        folder, results = measure_cancels(settings, command_line(), counts, slots, pairs, lookout)
    if output.as_json:
        echo(results.model_dump_json(indent=2))
    else:
        if results.rows:
            _show(results)
        echo(folder / CANCEL)
    if results.skipped:
        raise typer.Exit(FAILED)


def _show(results: CancelResults) -> None:
    from harness.cli.terminal_table import TerminalTable
    from harness.report.tables.table import Cell, Column, Table
    from harness.report.text.numbers import number

    def cell(median: Median | None, places: int) -> Cell:
        if median is None:
            return Cell.number(None)
        low, high = median.ci or (None, None)
        ends = "" if low is None else f"{number(low, places)} to {number(high, places)}"
        return Cell(number(median.value, places), median.value, ends, ends=median.ci)

    def column(head: str, each: list[Median | None], places: int = 1) -> Column:
        return Column(head, [cell(median, places) for median in each])

    rows = results.rows
    columns = [
        Column.text("engine", [row.label for row in rows]),
        Column.count("left after", [row.after for row in rows]),
        Column.count("pairs", [row.pairs for row in rows]),
        column("ms to the next request's first token: after an answer", [row.ended_ms for row in rows]),
        column("after a client left", [row.left_ms for row in rows]),
        column("slot free later by ms", [row.later_ms for row in rows], 2),
        column("ms per token", [row.step_ms for row in rows], 2),
        column("tokens for nobody, by time", [row.unread for row in rows]),
        column("by the server's counter", [row.counted for row in rows]),
    ]
    title = f"Clients that left answers of {results.answer_tokens} tokens"
    Terminal().print(TerminalTable(Table("cancel", title, columns)))
    for row in rows:
        if row.left_out:
            echo(f"{row.label}: {row.left_out} pairs left out, whose next request did not have to wait")
