"""What 8-bit floats cost in quality on real weights: perplexity and greedy agreement; Markdown.

    python -m benchmarks.fp8_quality smollm2-135m LICENSE docs/method.md

On a CPU, in float32 and with `--quantization fp8`, whose products are made of the rounded numbers there.
Every token of a text's first `--tokens` is predicted from all before it; `agree` is the share of places where
both find the same token the likeliest.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Quality:
    """Perplexity of a text in float32 and in 8-bit floats, the share of places where both find the same token
    the likeliest, and the Kullback-Leibler divergence between them, nats a token."""

    tokens: int
    exact: float
    rounded: float
    agree: float
    divergence: float


def quality(name: str, texts: Sequence[str], most: int) -> list[Quality]:
    """Of the first `most` tokens of each text, by the model `name`."""
    folder = model_folder(name)
    models = [
        load(str(folder), torch.device("cpu"), torch.float32, quantization=how) for how in (None, "fp8")
    ]
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    found = []
    for text in texts:
        tokens = np.array(tokenizer.encode(text)[:most], dtype=np.int64)
        wanted = torch.from_numpy(tokens[1:])
        exact, rounded = (torch.log_softmax(logits_of(model, tokens)[:-1], -1) for model in models)
        perplexity = [float(F.nll_loss(logprobs, wanted).exp()) for logprobs in (exact, rounded)]
        agree = float((exact.argmax(-1) == rounded.argmax(-1)).float().mean())
        divergence = float((exact.exp() * (exact - rounded)).sum(-1).mean())
        found.append(Quality(len(tokens), perplexity[0], perplexity[1], agree, divergence))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=1024)
    given = parser.parse_args()
    print("| text | tokens | perplexity in float32 | fp8 | agree | nats a token between them |")
    print("|---|---:|---:|---:|---:|---:|")
    found = quality(given.model, [text.read_text() for text in given.texts], given.tokens)
    for text, row in zip(given.texts, found, strict=True):
        print(
            f"| {text.name} | {row.tokens} | {row.exact:.3f} | {row.rounded:.3f} | {row.agree:.1%} | "
            f"{row.divergence:.4f} |"
        )


if __name__ == "__main__":
    main()
