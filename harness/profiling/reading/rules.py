"""The rules by which names are read: categories of kernels and operators, steps, and parts of the server.

One table each, shown in the report. The first rule that matches decides; case does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from harness.engines.registry import ENGINES
from harness.schema.profile import Category, Component, StepKind

Name = TypeVar("Name", Category, Component)

_CATEGORIES: tuple[tuple[Category, str], ...] = (
    (
        "communication",
        r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|multimem|c10d|gloo|custom_ar|join_ranks"
        r"|^collective$|memcpy ptop",
    ),
    ("experts", r"^(?!triton_(poi|red|per|for)).*(moe|expert|topkgating)"),
    ("sampling", r"argmax|multinomial|sampl|top_?[kp]|gumbel|exponential|radixsort|aten::sort"),
    (
        "matmul",
        r"triton_(tem|mm)|gemm|gemv|matmul|\w*addmm|\bb?mm\b|onednn_mm|linear|nvjet|cutlass::kernel|splitkreduce|\bmlp\b",
    ),
    (
        "attention",
        r"attention|attn|flash(?!infernorm)|fmha|paged|merge_state|batch(prefill|decode)with|sdpa"
        r"|reshape_and_cache|kv_?cache|append_kv|store_kv|slot_mapping"
        r"|gated_delta|causal_conv",
    ),
    # On a CPU the kernels that a compiled graph fused have no names of their own.
    ("norm and elementwise", r"triton_(poi|red|per|for)|call compiledfxgraph"),
    (
        "memory copies",
        r"memcpy|memset|copy|clone|(?<!pre)fill|zero_|contiguous|aten::cat|catarray|\[cuda mem",
    ),
    (
        "norm and elementwise",
        r"norm|gelu|silu|swiglu|relu|tanh|act_and_mul|elementwise|rotary|rope|rotate|embedding|gather|index|select"
        r"|softmax|reduce|aten::(add|sub|mul|div|pow|mean|sum|exp|rsqrt|where|lt|gt|le|ge|eq|ne|cumsum)_?$",
    ),
)


def _with_engines(rules: Iterable[tuple[Name, str]]) -> tuple[tuple[Name, str], ...]:
    """Add to each pattern, which may be empty, those that adapters have for the same name."""
    table: list[tuple[Name, str]] = []
    for name, pattern in rules:
        engines: list[str] = [engine.trace_names.get(name, "") for engine in ENGINES.values()]
        table.append((name, "|".join(filter(None, [*engines, pattern]))))
    return tuple((name, pattern) for name, pattern in table if pattern)


#: Category of a kernel or operator by a pattern that its name contains.
CATEGORIES = _with_engines(_CATEGORIES)
_CATEGORY_PATTERNS = [(category, re.compile(pattern, re.IGNORECASE)) for category, pattern in CATEGORIES]


@lru_cache(maxsize=100_000)
def categorize(name: str) -> Category:
    """The category of a kernel or operator; `other` where no rule matches."""
    return next((category for category, pattern in _CATEGORY_PATTERNS if pattern.search(name)), "other")


_COMPONENTS: tuple[tuple[Component, str], ...] = (
    ("tokenize", r"tokenizer?: encode"),
    ("IPC", ""),
    ("scheduling", ""),
    ("detokenize", r"detokeniz"),
)
#: Part of the server by a pattern of the ranges in which it is at work.
COMPONENTS = _with_engines(_COMPONENTS)
_COMPONENT_PATTERNS = [(part, re.compile(pattern, re.IGNORECASE)) for part, pattern in COMPONENTS]


def component(name: str) -> Component | None:
    """The part of the server that a range is of."""
    return next((part for part, pattern in _COMPONENT_PATTERNS if pattern.search(name)), None)


@dataclass(frozen=True)
class StepRange:
    """Kind of the step that a range encloses, and its number of requests; None where the name has none."""

    kind: StepKind
    batch: int | None


#: Pattern of the range that encloses the model's forward in a step, by engine.
STEP_RANGES = {engine.display: engine.step_pattern for engine in ENGINES.values() if engine.step_pattern}
_STEP_PATTERNS = [re.compile(pattern) for pattern in STEP_RANGES.values()]
#: Ranges around a whole step, which may hold several forwards.
WHOLE_STEPS = frozenset(engine.whole_step for engine in ENGINES.values() if engine.whole_step)


def step_range(name: str) -> StepRange | None:
    """The step that a range encloses; None for any other range. A step with prompts in it is a prefill."""
    match = next(filter(None, (pattern.search(name) for pattern in _STEP_PATTERNS)), None)
    if match is None:
        return None
    groups = match.groupdict()
    counts = [int(groups[key]) for key in ("prompts", "decodes", "requests") if groups.get(key)]
    return StepRange("prefill" if groups.get("prefill") else "decode", sum(counts) if counts else None)
