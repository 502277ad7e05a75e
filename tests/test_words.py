"""The code and the documents use the field's words. Add a word here when it has a common one."""

from __future__ import annotations

import io
import re
from pathlib import Path
from tokenize import NAME, generate_tokens

import pytest

ROOT = Path(__file__).parents[1]
#: Private words, and what to write instead.
INSTEAD = {
    r"\bmend(s|ed|ing)?\b": "hint, or fix",
    r"\bnobody (tells|knows)\b": "unknown, or not reported",
    r"\bgolden[ _-]server\b": "mock server",
    r"\brooms\b": "packages",
    r"\bwalls\b|\bside of the wall\b": "layers",
    r"\btold\b": "reported, or what the value is",
    r"\bLeftBehind": "CleanupError",
    r"\b[Cc]ontenders?\b": "engine variant",
    r"\b[Dd]eeds?\b": "served request",
    r"\b[Uu]nder way\b": "in flight, or unfinished",
    r"\b[Bb]ehind (a|an|the|it|cached)\b": "after",
    r"\b_(risen|counted|gone)\b": "a name for what the function returns",
}
#: Names of variables that say nothing.
NAMES = {"one", "told"}
#: The reader of schema 1 needs the old names of keys, as its test does; this file has them all.
ALLOWED = (ROOT / "harness/runs/convert.py", ROOT / "tests/harness/runs/test_convert.py", Path(__file__))
SEARCHED = (
    "harness",
    "roseinfer",
    "rosemodels",
    "docs",
    "configs",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
    "benchmarks",
    "tests",
    "scripts",
)
SUFFIXES = (".py", ".md", ".yaml", ".j2", ".js", ".cpp", ".h", ".cu", ".cuh")


def sources() -> list[Path]:
    tops = [ROOT / name for name in SEARCHED]
    files = [file for top in tops for file in (top.rglob("*") if top.is_dir() else [top])]
    return [f for f in files if f.is_file() and (f.suffix in SUFFIXES or f in tops) and f not in ALLOWED]


@pytest.mark.parametrize("pattern", INSTEAD)
def test_the_fields_words_are_used(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert not found, f"write {INSTEAD[pattern]!r} instead in:\n" + "\n".join(found)


def test_variables_are_named_after_what_they_hold() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.line.strip()}"
        for path in sources()
        if path.suffix == ".py"
        for token in generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        if token.type == NAME and token.string in NAMES
    ]
    assert not found, "\n".join(found)


def test_there_is_something_to_search() -> None:
    assert len(sources()) > 300
