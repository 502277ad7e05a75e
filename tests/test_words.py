"""The code and the documents use the field's words. Add a word here when it has a common one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

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
#: Packages whose docstrings and variables follow CONTRIBUTING's rule.
CLEAN = ("harness", "roseinfer", "rosemodels", "benchmarks", "scripts", "tests/roseinfer", "tests/rosemodels")
#: Openings of docstrings that leave out their noun.
OPENINGS = r"(What|Of|Those|As|How|Whether|Which|Why|Theirs|Its|Where|So)\b"
#: Variables that say that something happened, and not what they hold.
UNNAMED = {"found", "said", "known", "asked", "told", "own", "given", "wanted", "seen", "mine", "whose"}
#: Names that files of runs have, and which no one may change.
STORED = {("harness/schema/fairness.py", "asked")}
#: Names of variables that say nothing.
NAMES = {"one", "told"}
#: This file has them all.
ALLOWED = (Path(__file__),)
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
#: A string or a comment of Python, from where it begins to where it ends.
NO_CODE = re.compile(
    r"""(?P<quotes>\"{3}|'{3})(?:\\.|[^\\])*?(?P=quotes)"""
    r"""|(?P<quote>["'])(?:\\.|[^\\\n])*?(?P=quote)|\#[^\n]*""",
    re.DOTALL,
)


@cache
def texts() -> dict[Path, str]:
    """What is searched, by file."""
    tops = [ROOT / name for name in SEARCHED]
    files = [file for top in tops for file in (top.rglob("*") if top.is_dir() else [top])]
    found = [f for f in files if (f.suffix in SUFFIXES or f in tops) and f.is_file() and f not in ALLOWED]
    return {file: file.read_text(encoding="utf-8") for file in found}


@cache
def suspects() -> dict[Path, str]:
    """Files with a private word, whichever it is: each file is looked through once."""
    every = re.compile("|".join(INSTEAD))
    return {path: text for path, text in texts().items() if every.search(text)}


def places(path: Path, text: str, pattern: str) -> list[str]:
    """File, line and text of each line in which the pattern is found."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{path.relative_to(ROOT)}:{number}: {lines[number - 1].strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(pattern, line)
    ]


def code(text: str) -> str:
    """A program without its strings and comments, in as many lines."""
    return NO_CODE.sub(lambda found: "\n" * found[0].count("\n"), text)


@pytest.mark.parametrize("pattern", INSTEAD)
def test_the_fields_words_are_used(pattern: str) -> None:
    found = [place for path, text in suspects().items() for place in places(path, text, pattern)]
    assert not found, f"write {INSTEAD[pattern]!r} instead in:\n" + "\n".join(found)


def test_variables_are_named_after_what_they_hold() -> None:
    names = rf"\b({'|'.join(sorted(NAMES))})\b"
    programs = {path: text for path, text in texts().items() if path.suffix == ".py"}
    found = [
        place
        for path, text in programs.items()
        if re.search(names, text)
        for place in places(path, code(text), names)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", CLEAN)
def test_docstrings_and_variables_name_their_subject(package: str) -> None:
    faults = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            docstring = ast.get_docstring(node) if isinstance(node, kinds) else None
            if docstring and re.match(OPENINGS, docstring):
                faults.append(f"{path.relative_to(ROOT)}: {docstring.splitlines()[0]}")
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Store):
                continue
            if node.id in UNNAMED and (str(path.relative_to(ROOT)), node.id) not in STORED:
                faults.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("""a = "b'" + 'c\\'d'  # e's "f""", "a =  +   "),
        ('g = """h\n"i" \\""" j""" + k', "g = \n + k"),
        ("""l = r'\\\\'  # 'm""", "l = r  "),
        ("""n = ''""o""", "n = o"),
    ],
)
def test_strings_and_comments_are_no_code(text: str, left: str) -> None:
    assert code(text) == left


def test_there_is_something_to_search() -> None:
    assert len(texts()) > 300
