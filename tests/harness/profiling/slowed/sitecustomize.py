"""Slows a roseinfer down in one place: Python runs this first in every process that has it on its path.

SLOWED names the places, with commas: `tokenizer` sleeps where the server turns a prompt into token ids,
`layers` normalizes a large tensor in each layer's attention, again and again for a time that no other part of
a step comes near, however busy the machine is; `steps` sleeps in each layer's attention, so that a request
takes far longer than the rest of the machine may keep it waiting.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from typing import Any

SLEEP_S = 0.5
STEP_S = 0.005
NORM_S = 0.02
SHAPE = (2048, 1024)


def slow_tokenizer(module: Any) -> None:
    import asyncio

    original = module.Submission._token_ids

    async def slow(self: Any, *arguments: Any) -> Any:
        await asyncio.sleep(SLEEP_S)
        return await original(self, *arguments)

    module.Submission._token_ids = slow


def slow_steps(module: Any) -> None:
    original = module.CpuPagedAttention._decode

    def slow(self: Any, *tensors: Any) -> None:
        time.sleep(STEP_S)
        original(self, *tensors)

    module.CpuPagedAttention._decode = slow


def slow_layers(module: Any) -> None:
    import torch

    original = module.CpuPagedAttention._decode
    large = torch.ones(SHAPE)

    def slow(self: Any, *tensors: Any) -> None:
        end = time.perf_counter() + NORM_S
        while time.perf_counter() < end:
            torch.nn.functional.layer_norm(large, SHAPE[1:])
        original(self, *tensors)

    module.CpuPagedAttention._decode = slow


SLOWDOWNS = {
    "tokenizer": ("roseinfer.server.openai.submission", slow_tokenizer),
    "layers": ("roseinfer.attention.cpu_paged", slow_layers),
    "steps": ("roseinfer.attention.cpu_paged", slow_steps),
}


class Finder(importlib.abc.MetaPathFinder):
    """Patches one module when it is imported."""

    def __init__(self, name: str, patch: Any) -> None:
        self.name, self.patch = name, patch

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        loader, patch = spec.loader, self.patch
        execute = loader.exec_module

        def then_patch(module: Any) -> None:
            execute(module)
            patch(module)

        loader.exec_module = then_patch  # type: ignore[method-assign]
        return spec


for place in filter(None, os.environ.get("SLOWED", "").split(",")):
    sys.meta_path.insert(0, Finder(*SLOWDOWNS[place]))
