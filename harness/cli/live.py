"""The lines of a terminal while a run lasts: one that says what happens now, and a bar."""

from __future__ import annotations

from time import monotonic

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from harness.cli.terminal import Terminal


class LiveStatus:
    """Two lines at the bottom of the terminal, which are gone at the end.

    The bar is of what happens now: the requests of a warm-up or of a cell. The times are of the whole run,
    and what is left follows from the share of its cells, or batches, that is done: in the first cell without
    the engine's start, as so little of the cell is done.
    """

    def __init__(self, console: Terminal) -> None:
        self._text = Text("", no_wrap=True, overflow="ellipsis")
        self._bar = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[times]}"),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=None, count="", times="")
        self._live = Live(self, console=console, transient=True, refresh_per_second=4)
        self._began, self._share = monotonic(), 0.0
        self._since = self._began

    def __enter__(self) -> LiveStatus:
        self._live.__enter__()
        return self

    def __exit__(self, *fault: object) -> None:
        self._live.stop()

    def __rich__(self) -> Group:
        elapsed, spent = monotonic() - self._began, monotonic() - self._since
        remaining = clock(spent * (1 / self._share - 1)) if 0 < self._share < 1 else "-:--"
        self._bar.update(self._task, times=f"{clock(elapsed)} elapsed, {remaining} left")
        return Group(self._text, self._bar)

    def show(self, text: str, count: str = "", completed: int = 0, total: int | None = None) -> None:
        """Say what happens now; a bar without a total moves to and fro."""
        self._text.plain = text
        self._bar.update(self._task, count=count, completed=completed, total=total)

    def run_share(self, share: float, since: float | None = None) -> None:
        """Show the share of the run that is done, from 0 to 1, since its beginning or `since`."""
        self._share, self._since = share, self._began if since is None else since


def clock(seconds: float) -> str:
    """`1:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
