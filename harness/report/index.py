"""`index.html`: every report in a folder, with its headline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from harness.files import write_whole
from harness.report.page import environment, text_of

INDEX = "index.html"
_HEAD_BYTES = 65536
_META = re.compile(r'<meta name="rosebench-(title|made|verdict|machine)" content="([^"]*)">')


@dataclass(frozen=True)
class Entry:
    """A report as the list shows it."""

    file: str
    title: str
    made: str
    machine: str
    verdict: str


def write_index(folder: Path) -> Path:
    """List the reports in `folder`, newest run first; files that are no reports of this tool are left out."""
    found = (_entry(path) for path in sorted(folder.glob("*.html")) if path.name != INDEX)
    entries = sorted((entry for entry in found if entry is not None), key=lambda one: one.made, reverse=True)
    page = environment().get_template("index.html.j2").render(entries=entries, css=text_of("report.css"))
    write_whole(folder / INDEX, page.encode())
    return folder / INDEX


def _entry(path: Path) -> Entry | None:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", errors="replace")
    meta = {name: unescape(content) for name, content in _META.findall(head)}
    if "title" not in meta:
        return None
    return Entry(
        path.name, meta["title"], meta.get("made", ""), meta.get("machine", ""), meta.get("verdict", "")
    )
