"""Facts of one engine are in its adapter alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from harness import paths
from harness.engines.registry import LOCAL, in_order
from harness.schema.run_info import LaunchRecord

HARNESS = Path(paths.__file__).parent
#: Where a name may be all the same, and why.
ALLOWED = {
    "cli": "examples in help texts",
    "models/text_tokens.py": "the extra that brings the library transformers",
    "runs/online.py": "code of this project changed within a run",
    "schema/setting_types.py": "the engines of a run where none is named",
    "schema/presets.py": "the name of another benchmark",
    "schema/settings.py": "an example in a help text",
    "telemetry/revision.py": "packages of this project, whose code is its own",
    "mock_server/server.py": "a page for Prometheus as a real server has it",
}


def code_texts(path: Path) -> Iterator[str]:
    """Names and strings of a file, without its docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_no_engine_is_named_outside_of_its_adapter() -> None:
    names = {name for engine in LOCAL.values() for name in (engine.name, engine.display, engine.version_name)}
    names -= {"", "transformers"}  # which is also the library that reads tokenizers
    adapters = HARNESS / "engines" / "adapters"
    leaks = [
        (str(path.relative_to(HARNESS)), text)
        for path in HARNESS.rglob("*.py")
        if not path.is_relative_to(adapters)
        and not any(path.is_relative_to(HARNESS / place) for place in ALLOWED)
        for text in code_texts(path)
        if any(name.lower() in text.lower() for name in names)
    ]
    assert leaks == []


def test_the_authors_own_engine_comes_last_also_as_a_running_server_of_its_name() -> None:
    names = [("roseinfer", "roseinfer (fp8)"), ("openai", "Roseinfer"), ("vllm", "vLLM"), ("openai", "b")]
    records = in_order(LaunchRecord(engine=engine, label=label) for engine, label in names)
    assert [record.label for record in records] == ["b", "vLLM", "Roseinfer", "roseinfer (fp8)"]
