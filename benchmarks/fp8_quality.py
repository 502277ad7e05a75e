"""What FP8 costs in quality on real weights: perplexity, and agreement of greedy tokens; Markdown.

    python -m benchmarks.fp8_quality smollm2-135m LICENSE docs/method.md

On a CPU: weights and activations in FP8 (`--quantization fp8`, which multiplies the rounded numbers in
float32 there) compared with float32, and the KV cache in FP8 (`--kv-cache-dtype fp8`) with bf16. Each of a
text's first `--tokens` tokens is predicted from all before it. The last two columns are the share of
positions at which both have the same argmax, and the Kullback-Leibler divergence between them.
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

from benchmarks.models import model_name
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.batch import Batch, Segment
from roseinfer.config import Quantization
from roseinfer.e4m3 import E4M3
from roseinfer.kvcache.pool import KVPool
from roseinfer.model_folder import model_folder
from roseinfer.models.load import load
from roseinfer.models.model import Model
from roseinfer.tokenizer.tokenizer import Tokenizer

_SIZE = 16


@torch.inference_mode()
def logits_of(model: Model, tokens: np.ndarray[tuple[int], np.dtype[np.int64]], cache: torch.dtype) -> Tensor:
    """`[T, vocab]` of one prompt, with keys and values in `cache`."""
    count = len(tokens)
    blocks = np.arange(-(-count // _SIZE))
    pool = KVPool(model.config.kv_shape(cache), len(blocks), _SIZE, torch.device("cpu"))
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
class Numbers:
    """A model's number formats: `dtype`, and FP8 for weights and activations or for the KV cache."""

    dtype: torch.dtype
    quantization: Quantization | None = None
    cache: torch.dtype | None = None


#: What is compared with what.
COMPARED = {
    "fp8 weights": (Numbers(torch.float32, "fp8"), "float32", Numbers(torch.float32)),
    "fp8 cache": (Numbers(torch.bfloat16, cache=E4M3), "bf16", Numbers(torch.bfloat16)),
}


@dataclass(frozen=True)
class Quality:
    """Perplexity of a text without and with FP8, the share of positions at which both have the same argmax,
    and the Kullback-Leibler divergence between them, nats a token."""

    tokens: int
    exact: float
    rounded: float
    agree: float
    divergence: float


def quality(folder: Path, texts: Sequence[str], most: int, compared: Sequence[Numbers]) -> list[Quality]:
    """Of the first `most` tokens of each text, with both of `compared`, of which the second are exact."""
    models = [
        load(str(folder), torch.device("cpu"), numbers.dtype, quantization=numbers.quantization)
        for numbers in compared
    ]
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    found = []
    for text in texts:
        tokens = np.array(tokenizer.encode(text)[:most], dtype=np.int64)
        wanted = torch.from_numpy(tokens[1:])
        rounded, exact = (
            torch.log_softmax(logits_of(model, tokens, numbers.cache or numbers.dtype)[:-1].float(), -1)
            for model, numbers in zip(models, compared, strict=True)
        )
        perplexity = [float(F.nll_loss(logprobs, wanted).exp()) for logprobs in (exact, rounded)]
        agree = float((exact.argmax(-1) == rounded.argmax(-1)).float().mean())
        divergence = float((exact.exp() * (exact - rounded)).sum(-1).mean())
        found.append(Quality(len(tokens), perplexity[0], perplexity[1], agree, divergence))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=model_name)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=1024)
    given = parser.parse_args()
    folder, texts = model_folder(given.model), [text.read_text() for text in given.texts]
    print("| text | tokens | | perplexity | beside | perplexity | agree | nats a token between them |")
    print("|---|---:|---|---:|---|---:|---:|---:|")
    for name, (rounded, beside, exact) in COMPARED.items():
        for text, row in zip(
            given.texts, quality(folder, texts, given.tokens, [rounded, exact]), strict=True
        ):
            print(
                f"| {text.name} | {row.tokens} | {name} | {row.rounded:.3f} | {beside} | {row.exact:.3f} "
                f"| {row.agree:.1%} | {row.divergence:.4f} |"
            )


if __name__ == "__main__":
    main()
