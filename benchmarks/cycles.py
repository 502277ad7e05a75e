"""Writes a checkpoint of Qwen3-8B's shape whose greedy answers repeat themselves, as copied text does.

    python -m benchmarks.cycles FOLDER

The layers' share of the residual stream is scaled to a thousandth, and 64 tokens are left in the LM head. A
step takes as long as with other weights. They are drawn on a GPU.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rosemodels import llama
from rosemodels.files import write_json

TOKENS, SHARE, SHARD = 64, 1e-3, 4 << 30


def main() -> None:
    """Write files of about SHARD bytes, and their index."""
    folder, shape = Path(sys.argv[1]), replace(llama.SHAPES["qwen3-8b"], stored=False)
    folder.mkdir(parents=True)
    llama.write(folder, shape)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {key: config[key] for key in config if key != "random_weights"})
    files: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    tensors = list(llama.tensors(shape))
    for number, tensor in enumerate(tensors):
        drawn = (
            torch.randn(tensor.shape, device="cuda") * tensor.std if tensor.std else torch.ones(tensor.shape)
        )
        if tensor.name.endswith(("o_proj.weight", "down_proj.weight")):
            drawn *= SHARE
        if tensor.name == "lm_head.weight":
            drawn[TOKENS:] = 0
        shard[tensor.name] = drawn.bfloat16().cpu()
        if sum(each.nbytes for each in shard.values()) > SHARD or tensor is tensors[-1]:
            file = f"model-{number:05}.safetensors"
            save_file(shard, folder / file, metadata={"format": "pt"})
            files |= dict.fromkeys(shard, file)
            shard = {}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": files})


if __name__ == "__main__":
    main()
