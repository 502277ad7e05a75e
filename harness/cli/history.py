"""`bench history`: keeps results of runs, shows their trend, judges a run by them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.compare import conclude
from harness.cli.terminal import FAILED, Terminal, echo
from harness.cli.terminal_table import TerminalTable
from harness.compare.stored_run import StoredRun
from harness.errors import UsageError
from harness.history.gate import gate as judge
from harness.history.store import DEFAULT, Past, Store
from harness.report.tables.history import history_csv, history_table
from harness.report.text.numbers import few, several
from harness.schema.limits import ERROR_RATE, names_of, parse_gate

app = typer.Typer(no_args_is_help=True, help="Keep results of runs, show their trend, judge a run by them.")

In = Annotated[
    Path, typer.Option("--store", envvar="BENCH_HISTORY", help="SQLite file with the history", metavar="FILE")
]


@app.command()
def add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of runs")],
    store: In = DEFAULT,
) -> None:
    """Keep the results of runs, with revision, machine and settings.

    Exits with 3 where every engine of a run is left out.
    """
    read, empty = [StoredRun.read(path) for path in runs], False
    with Store.open(store, create=True) as history:
        for run in read:
            name, left_out = run.path.resolve().name, history.add(run)
            for label, reason in left_out.items():
                echo(f"{label} is left out because {reason}")
            if run.cells.keys() <= left_out.keys():
                empty = True
                echo(f"nothing of this run was added: every engine of {name} is left out")
            else:
                echo(f"added {name} to {store}")
    if empty:
        raise typer.Exit(FAILED)


@app.command()
def remove(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="runs of the history, by their names or folders")
    ],
    created: Annotated[
        str | None, typer.Option(help="which one, where several have the name", metavar="TIME")
    ] = None,
    store: In = DEFAULT,
) -> None:
    """Forget runs that were added by mistake.

    All that are named, or none. Their folders stay as they are.
    """
    with Store.open(store) as history:
        named = (_named(history, Path(run).resolve().name, created) for run in runs)
        past_runs = {past.id: past for past in named}
        history.remove(past_runs.values())
    for past in past_runs.values():
        echo(f"removed {past.name} from {store}")


def _named(history: Store, name: str, created: str | None) -> Past:
    """Return the run of that name. Raises UsageError if there is none, or more than one."""
    runs = history.runs()
    matching = [past for past in runs if past.name == name and created in (None, past.created)]
    if not matching:
        when = "" if created is None else f" of {created}"
        names = list(dict.fromkeys(past.name for past in reversed(runs)))
        hint = f"it has {few(names)}; `bench history show` lists them" if names else "it is empty"
        raise UsageError(f"the history has no run {name}{when}", hint)
    if len(matching) > 1:
        times = several(past.created for past in matching)
        raise UsageError(
            f"{len(matching)} runs of the history are named {name}", f"give --created, one of {times}"
        )
    return matching[0]


@app.command()
def show(
    statistic: Annotated[
        str, typer.Option("--metric", help="such as ttft_p99, tpot_p50, output_tok_per_s", metavar="NAME")
    ] = "ttft_p99",
    engine: Annotated[
        str | None, typer.Option(help="only the engine with that label", metavar="LABEL")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="print the numbers as CSV")] = False,
    store: In = DEFAULT,
) -> None:
    """Show one statistic of all runs.

    With intervals, and the runs at which its level changed.
    """
    metric, name = names_of(statistic)
    if metric == ERROR_RATE:
        raise UsageError("the history has no error rates", "name a latency with a statistic, or a rate")
    with Store.open(store) as history:
        entries = [e for e in history.entries(metric, name) if engine is None or e.label == engine]
        labels = dict.fromkeys(entry.label for entry in history.entries(metric, name))
        names = history.rates()
    if not entries:
        others = f"; the history has {', '.join(names)}" if names else ""
        hint = f"engines with it: {', '.join(labels)}" if labels else f"add a run that has it{others}"
        raise UsageError(f"the history has no {statistic}{f' of {engine}' if engine else ''}", hint)
    if csv:
        echo(history_csv(entries, metric, name).removesuffix("\n"))
        return
    table = history_table(entries, metric, name)
    console = Terminal(soft_wrap=True)
    console.print(TerminalTable(table))
    for note in table.notes:
        console.print(note)


@app.command()
def gate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of the run to judge")],
    expression: Annotated[
        str, typer.Option("--gate", help="e.g. 'ttft_p99<=+10%, output_tok_per_s>=-3%'", metavar="EXPR")
    ],
    against: Annotated[
        str,
        typer.Option(help="last, best (by the first limit), or a git revision", metavar="last|best|REV"),
    ] = "last",
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    store: In = DEFAULT,
) -> None:
    """Judge a run by an earlier one.

    That one has the same settings and the same hardware.

    Exits with 0 (pass), 1 (regression) or 2 (inconclusive, or a wrong command line).
    """
    terms, judged = parse_gate(expression), StoredRun.read(run)
    with Store.open(store) as history:
        results = judge(history, judged, against, terms)
    conclude(results, as_json)
