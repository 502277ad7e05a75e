"""No kernel is compiled again while serving: what changes from step to step is not specialised."""

from __future__ import annotations

import ast
from pathlib import Path

import roseinfer.kernels

FILES = sorted((Path(roseinfer.kernels.__file__).parent / "triton").glob("*.py"))
#: Arguments that change from step to step.
CHANGING = {"rows", "count", "prompts"}


def test_what_changes_between_steps_is_not_specialised() -> None:
    kernels = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("_"):
                continue
            decorators = [d for d in node.decorator_list if "triton.jit" in ast.unparse(d)]
            changing = {argument.arg for argument in node.args.args} & CHANGING
            if not decorators or not changing:
                continue
            kernels.add(node.name)
            excluded = {c.value for c in ast.walk(decorators[0]) if isinstance(c, ast.Constant)}
            assert changing <= excluded, f"{path.name}: {node.name} specialises {changing - excluded}"
    assert kernels >= {
        "_norm",
        "_linear",
        "_pipelined_linear",
        "_prefill_attention",
        "_read_slot",
        "_write_slot",
    }
