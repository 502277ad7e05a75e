"""What a command prints: nothing that it prints can steer the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from harness.plain_text import visible


class Terminal(Console):
    """A console that writes hidden characters out and takes no markup. Its own control codes, such as
    colours, pass."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"markup": False, "emoji": False, "highlight": False} | options))

    def render(self, *given: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*given, **options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def echo(text: object, *, error: bool = False) -> None:
    """Print a line to stdout or stderr."""
    print(visible(str(text)), file=sys.stderr if error else sys.stdout)
