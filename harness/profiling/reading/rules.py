"""The rules by which names are read: categories of kernels and operators, steps, and parts of the server.

One table each, shown in the report. The first rule that matches decides; case does not matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from harness.schema.profile import Category, Component, StepKind

#: Category of a kernel or operator by a pattern that its name contains.
CATEGORIES: tuple[tuple[Category, str], ...] = (
    (
        "communication",
        r"nccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|multimem|c10d|gloo|custom_ar|join_ranks"
        r"|^collective$|memcpy ptop|^roseinfer\.ranks\.",
    ),
    ("sampling", r"argmax|multinomial|sampl|top_?[kp]|gumbel|exponential|radixsort|aten::sort"),
    (
        "matmul",
        r"triton_(tem|mm)|gemm|gemv|matmul|\w*addmm|\bb?mm\b|onednn_mm|linear|nvjet|cutlass::kernel|splitkreduce|\bmlp\b",
    ),
    (
        "attention",
        r"attention|attn|flash|fmha|paged|merge_state|batch(prefill|decode)with|sdpa"
        r"|reshape_and_cache|kv_?cache|append_kv|store_kv|slot_mapping",
    ),
    ("norm and elementwise", r"triton_(poi|red|per|for)"),
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
_CATEGORIES = [(category, re.compile(pattern, re.IGNORECASE)) for category, pattern in CATEGORIES]


@lru_cache(maxsize=100_000)
def categorize(name: str) -> Category:
    """The category of a kernel or operator; `other` where no rule matches."""
    return next((category for category, pattern in _CATEGORIES if pattern.search(name)), "other")


#: Ranges that say which part of the server is at work.
COMPONENTS: tuple[tuple[Component, str], ...] = (
    ("tokenize", r"^roseinfer\.tokenize|tokenizer?: encode"),
    ("IPC", r"^roseinfer\.ipc\."),
    ("scheduling", r"^roseinfer\.scheduler\.|^schedule: "),
    ("detokenize", r"^roseinfer\.detokenize|detokeniz"),
)
_COMPONENTS = [(component, re.compile(pattern, re.IGNORECASE)) for component, pattern in COMPONENTS]


def component(name: str) -> Component | None:
    """The part of the server that a range is of."""
    return next((component for component, pattern in _COMPONENTS if pattern.search(name)), None)


@dataclass(frozen=True)
class StepRange:
    """What the range around a step says. `batch` is the number of requests, None where it does not say."""

    kind: StepKind
    batch: int | None


_VLLM = re.compile(r"^execute_(?:\d+_)?context_(\d+)\([^)]*\)_generation_(\d+)\(")
_SGLANG = re.compile(r"^step\[(\w+)\s+bs=(\d+)", re.IGNORECASE)
#: SGLang's names of steps with prompts in them.
_SGLANG_PROMPTS = {"EXTEND", "MIXED", "SPLIT_PREFILL"}
#: roseinfer's range around a whole step, which may hold several forwards.
WHOLE_STEP = "roseinfer.mp.step"
_ROSEINFER = re.compile(r"^roseinfer\.(prefill_batch\.model_forward|model\.forward\.\w+)$")

#: The range that encloses the model's forward in a step, by engine, as the report shows it.
STEP_RANGES = {
    "roseinfer": _ROSEINFER.pattern,
    "vLLM": _VLLM.pattern,
    "SGLang": _SGLANG.pattern,
}


def step_range(name: str) -> StepRange | None:
    """What step a range encloses; None: it is no such range. A step with prompts in it is a prefill."""
    if match := _ROSEINFER.match(name):
        return StepRange("prefill" if match[1].startswith("prefill") else "decode", None)
    if match := _VLLM.match(name):
        prompts, decodes = int(match[1]), int(match[2])
        return StepRange("prefill" if prompts else "decode", prompts + decodes)
    if match := _SGLANG.match(name):
        return StepRange("prefill" if match[1].upper() in _SGLANG_PROMPTS else "decode", int(match[2]))
    return None
