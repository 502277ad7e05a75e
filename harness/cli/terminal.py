"""Output of commands, none of which can steer the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console
from rich.segment import Segment

from harness.plain_text import visible

#: Exit code of a command of which something failed.
FAILED = 3
#: Columns of a pipe or file.
PIPE_WIDTH = 160


class Terminal(Console):
    """A console that writes hidden characters out and takes no markup. Its own control codes, such as
    colours, pass. A pipe or file is as wide on every terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"markup": False, "emoji": False, "highlight": False} | options))
        if not self.is_terminal and "width" not in options:
            self.width = PIPE_WIDTH

    def render(self, *objects: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*objects, **options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> None:
        discard(self.file)


def echo(text: object) -> None:
    """Print a line to stdout."""
    try:
        print(visible(str(text)), flush=True)
    except BrokenPipeError:
        discard(sys.stdout)


def discard(stream: IO[str]) -> None:
    """Nobody reads this stream any more, as after `| head`: what is written to it is dropped, and the command
    goes on to its own end and exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
