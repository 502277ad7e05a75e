"""What 8-bit floats cost in quality on real weights: perplexity and greedy agreement; Markdown.

    python -m benchmarks.fp8_quality smollm2-135m LICENSE docs/method.md

On a CPU, in float32 and with `--quantization fp8`, whose products are made of the rounded numbers there.
Every token of a text's first `--tokens` is predicted from all before it; `agree` is the share of places where
both find the same token the likeliest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.batch import Batch, Segment
from roseinfer.kvcache.pool import KVPool
from roseinfer.model_folder import model_folder
from roseinfer.models.load import load
from roseinfer.models.model import Model
from roseinfer.tokenizer.tokenizer import Tokenizer

_SIZE = 16


@torch.inference_mode()
def logits_of(model: Model, tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
    """`[T, vocab]` of one prompt."""
    count = len(tokens)
    blocks = np.arange(-(-count // _SIZE))
    pool = KVPool(model.config.kv_shape(torch.float32), len(blocks), _SIZE, torch.device("cpu"))
    attention = TorchPagedAttention(pool)
    every = np.arange(count)
    attention.begin(
        Batch(
            tokens=tokens,
            positions=every,
            cache_slots=every,
            segments=(Segment(0, count, 0, blocks[:0], 0),),
            decode_lengths=every[:0],
            last_rows=every[-1:],
            requests=np.zeros(1, dtype=np.int64),
            block_table=blocks[None],
            block_size=_SIZE,
        )
    )
    hidden = model.forward(torch.from_numpy(tokens), torch.from_numpy(every), attention)
    return model.logits(hidden)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=1024)
    given = parser.parse_args()
    cpu = torch.device("cpu")
    models = [load(given.model, cpu, torch.float32, quantization=how) for how in (None, "fp8")]
    tokenizer = Tokenizer.load(model_folder(given.model))
    assert tokenizer is not None
    print("| text | tokens | perplexity in float32 | fp8 | agree | nats a token between them |")
    print("|---|---:|---:|---:|---:|---:|")
    for text in given.texts:
        tokens = np.array(tokenizer.encode(text.read_text())[: given.tokens], dtype=np.int64)
        wanted = torch.from_numpy(tokens[1:])
        exact, rounded = (torch.log_softmax(logits_of(model, tokens)[:-1], -1) for model in models)
        perplexity = [float(F.nll_loss(logprobs, wanted).exp()) for logprobs in (exact, rounded)]
        agree = float((exact.argmax(-1) == rounded.argmax(-1)).float().mean())
        divergence = float((exact.exp() * (exact - rounded)).sum(-1).mean())
        print(
            f"| {text.name} | {len(tokens)} | {perplexity[0]:.3f} | {perplexity[1]:.3f} | {agree:.1%} | "
            f"{divergence:.4f} |"
        )


if __name__ == "__main__":
    main()
