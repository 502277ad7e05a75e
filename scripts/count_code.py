"""Lines of code of folders, each with its files: `python -m scripts.count_code [FOLDER …]`.

A line counts if it has a token that is neither a comment nor a docstring.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

FOLDERS = (
    "harness",
    "harness/report",
    "roseinfer",
    "rosebench",
    "rosemodels",
    "benchmarks",
    "scripts",
    "tests",
)
#: Files with fewer lines of code are counted apart.
SMALL = 40
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """Return the number of lines with code in a module."""
    docstrings = set(docstring_lines(ast.parse(source)))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def docstring_lines(tree: ast.AST) -> Iterator[int]:
    """Yield the numbers of all lines of docstrings, from 1."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str()), lineno=first, end_lineno=int(last)), *_]:
                    yield from range(first, last + 1)


def main() -> None:
    """Print a Markdown table."""
    print("| folder | lines of code | files with code | below 40 lines |\n|---|---:|---:|---:|")
    for folder in sys.argv[1:] or FOLDERS:
        counts = [code_lines(path.read_text(encoding="utf-8")) for path in Path(folder).rglob("*.py")]
        files, small = (
            sum(low < count < high for count in counts) for low, high in ((0, 1 << 30), (0, SMALL))
        )
        print(f"| {folder} | {sum(counts):,} | {files} | {small} |")


if __name__ == "__main__":
    main()
