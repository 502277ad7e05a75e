"""Links between the documents lead somewhere, and the files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: A file of ours in code quotes; `NAME` is any name.
FILE = re.compile(
    r"`((?:harness|roseinfer|rosemodels|benchmarks|configs|docs|tests|traces)/[\w./-]+\.[a-z]+)`"
)


def anchors(document: Path) -> set[str]:
    """The headings of a document, as a link names them."""
    heads = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    broken = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (document.parent / target).resolve() if target else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    broken += [file for file in FILE.findall(text) if "NAME" not in file and not (ROOT / file).exists()]
    assert not broken


def test_there_are_documents() -> None:
    assert len(DOCUMENTS) > 15
