"""Draws the diagrams of the documents: `python -m scripts.site.diagrams`, or `make diagrams`.

The source is a fence of mermaid, which GitHub draws by itself. For the site each one is drawn once into
docs/images, under a name that has the hash of its source. This needs Node.js; `MMDC` names another command.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
FENCE = re.compile(r"^```mermaid\n(.*?)^```\n", flags=re.MULTILINE | re.DOTALL)
MMDC = "npx --yes @mermaid-js/mermaid-cli@12"
STYLE = Path(__file__).with_name("mermaid.json")


def title(source: str) -> str:
    """Return the title of a diagram, from its line `accTitle: …`."""
    match = re.search(r"^\s*accTitle: (.*)$", source, flags=re.MULTILINE)
    if match is None:
        raise ValueError("a diagram has no line `accTitle: …`, the text in place of its picture")
    return match[1]


def picture(source: str) -> Path:
    """Return the path of the picture of a diagram, drawn or not."""
    return IMAGES / f"diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def diagrams() -> list[str]:
    """The source of every diagram in docs/."""
    documents = sorted((ROOT / "docs").rglob("*.md"))
    return [source for path in documents for source in FENCE.findall(path.read_text(encoding="utf-8"))]


def draw() -> None:
    """Draw what is not drawn, and remove pictures of diagrams that are no more."""
    sources = {picture(source): source for source in diagrams()}
    for path in set(IMAGES.glob("diagram-*.svg")) - sources.keys():
        path.unlink()
    command = shlex.split(os.environ.get("MMDC", MMDC))
    for path, source in sources.items():
        if not path.is_file():
            options = ["--no-font-embed", "-b", "white", "-c", str(STYLE), "-i", "-", "-o", str(path)]
            subprocess.run([*command, *options], input=source, text=True, check=True)


if __name__ == "__main__":
    draw()
