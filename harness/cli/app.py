"""The `bench` command."""

from __future__ import annotations

import sys

import typer

from harness.cli import engines, offline, online, report, schema, traces
from harness.errors import BenchError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compare LLM serving engines on real request traces.",
)
app.command("online")(online.online)
app.command("offline")(offline.offline)
app.command("report")(report.report)
app.command("schema")(schema.schema)
app.add_typer(engines.app, name="engines")
app.add_typer(traces.app, name="traces")

INTERRUPTED = 130


def main() -> None:
    """Run a command. What a user can mend is one line on stderr and the error's exit code."""
    try:
        app()
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("bench: interrupted; finished cells are kept", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
