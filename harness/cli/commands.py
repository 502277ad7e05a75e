"""Every command of `bench`."""

from __future__ import annotations

from typing import Annotated

import typer

import harness
from harness.cli import calibrate, compare, engines, offline, online, profile, report, schema, traces

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compare LLM serving engines on real request traces.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"rosebench {harness.__version__}")
        raise typer.Exit


@app.callback()
def _bench(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="print it and exit")
    ] = False,
) -> None:
    pass


app.command("online")(online.online)
app.command("offline")(offline.offline)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("report")(report.report)
app.command("schema")(schema.schema)
app.add_typer(engines.app, name="engines")
app.add_typer(profile.app, name="profile")
app.add_typer(traces.app, name="traces")
