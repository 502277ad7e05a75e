"""The commands that the documents show: lines of code blocks, and code quotes in sentences."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("bench", "roseinfer", "make", "pip", "python", ".venv/bin/python", ".venv/bin/bench")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n| *\n)+)")
_INLINE = re.compile(r"`((?:bench|roseinfer|make) [^`]+)`")
#: A remark after a command, as the documents write it.
_REMARK = re.compile(r"\s{2,}#.*$|^#.*$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A command, and whether it stands in a block, to be copied."""

    document: Path
    text: str
    block: bool

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {self.text}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def blocks(text: str) -> list[str]:
    """Code blocks of a document, without remarks, and with continued lines joined."""
    fenced = [found[2] for found in _FENCE.finditer(text) if found[1] in ("", "sh", "bash", "console")]
    outside = _FENCE.sub("", text)
    indented = [re.sub(r"^ {4}", "", block, flags=re.M) for block in _INDENTED.findall(outside)]
    return [re.sub(r"\\\n\s*", "", _REMARK.sub("", block)) for block in [*fenced, *indented]]


def shown() -> list[Shown]:
    """Every command of every document, with variables of its block replaced."""
    found = []
    for document in DOCUMENTS:
        for block in blocks(document.read_text(encoding="utf-8")):
            variables: dict[str, str] = {}
            for line in filter(None, map(str.rstrip, block.splitlines())):
                if assigned := re.fullmatch(r'(\w+)="([^"]*)"', line):
                    variables[assigned[1]] = assigned[2]
                    continue
                for name, value in variables.items():
                    line = line.replace(f"${name}", value)
                if line.split()[0] in PROGRAMS:
                    found.append(Shown(document, line, True))
        text = _FENCE.sub("", document.read_text(encoding="utf-8"))
        prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
        found += [Shown(document, " ".join(quoted.split()), False) for quoted in _INLINE.findall(prose)]
    return found
