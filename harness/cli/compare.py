"""`bench compare A B`: how run B differs from run A, and whether it passes its gates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from harness.cli.terminal import Terminal, echo
from harness.cli.terminal_table import TerminalTable
from harness.compare.comparable import NAMES
from harness.compare.compare_runs import compare_runs
from harness.report.tables.comparisons import caveats, difference_tables, disturbances, gates_table
from harness.schema.base import split_option
from harness.schema.compare_results import CompareResults
from harness.schema.limits import parse_gate

#: Exit code by outcome. Code 2 is also that of a wrong command line, which says so on stderr.
CODES = {"pass": 0, "no gate": 0, "regression": 1, "inconclusive": 2, "not comparable": 3}


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="folder of the baseline run")],
    b: Annotated[Path, typer.Argument(metavar="B", help="folder of the run to judge")],
    gate: Annotated[
        str | None,
        typer.Option(
            help="limits of B, e.g. 'ttft_p99<=+10%, output_tok_per_s>=-3%, e2e_p50<=2s'", metavar="EXPR"
        ),
    ] = None,
    engine_a: Annotated[
        str | None,
        typer.Option(
            help="compare only this engine of A, by default with the one of the same label in B",
            metavar="NAME[@VARIANT]",
        ),
    ] = None,
    engine_b: Annotated[
        str | None, typer.Option(help="compare only this engine of B", metavar="NAME[@VARIANT]")
    ] = None,
    allow_different: Annotated[
        str | None, typer.Option(help=f"differences to allow: {', '.join(NAMES)}", metavar="NAME,…")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Compare two runs of the same kind, with intervals and verdicts.

    Runs of bench online are compared by their raw times, those of bench offline by their batches.
    `compare RUN RUN` compares the engines of one run with each other.

    Exits with 0 (pass, or no --gate), 1 (regression), 2 (inconclusive, or a wrong command line) or 3 (not
    comparable).
    """
    gates = parse_gate(gate) if gate is not None else []
    allowed = [] if allow_different is None else split_option("--allow-different", allow_different)
    conclude(compare_runs(a, b, gates, engine_a, engine_b, allowed), as_json)


def conclude(results: CompareResults, as_json: bool) -> NoReturn:
    """Print what differs, and which gates pass, and exit with the code of the outcome."""
    if as_json:
        echo(results.model_dump_json(indent=2))
    else:
        _show(results)
    raise typer.Exit(CODES[results.outcome])


def _show(results: CompareResults) -> None:
    console = Terminal(soft_wrap=True)
    same = results.a == results.b
    console.print(f"engines of {results.a}" if same else f"A: {results.a}\nB: {results.b}")
    for obstacle in results.obstacles:
        console.print(
            f"{'allowed' if obstacle.allowed else 'not comparable'} ({obstacle.name}): {obstacle.reason}"
        )
    for table in difference_tables(results):
        console.print(TerminalTable(table))
    if results.differences:
        for line in caveats(results):
            console.print(line)
    for line in disturbances(results):
        console.print(f"warning: {line}")
    if results.gates:
        console.print(TerminalTable(gates_table(results)))
    if results.outcome != "no gate":
        console.print(f"verdict: {results.outcome}")
    if results.outcome == "not comparable":
        names = list(dict.fromkeys(obstacle.name for obstacle in results.obstacles if not obstacle.allowed))
        hints = ["measure both runs with the same settings"] if set(names) - {"invalid", "repeats"} else []
        hints += ["measure the missing repeats with --resume"] if "repeats" in names else []
        hints += ["measure the invalid cells again"] if "invalid" in names else []
        hints += ["name one engine of each (--engine-a, --engine-b)"] if "engines" in names else []
        hints += [f"or use --allow-different {','.join(names)}"] if set(names) <= set(NAMES) else []
        console.print(f"  hint: {', '.join(hints)}")
