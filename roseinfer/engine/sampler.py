"""Samples the next token of each request from its logits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.engine.adjustments import Adjustments
from roseinfer.engine.logprobs import Asked, PromptAsked
from roseinfer.tensors import to_device

#: Rows that a CPU samples at once, or one for each of its threads if these are more: temporaries, 1.2 MiB a
#: row for a vocabulary of 50,000, then stay in the processor's caches and do not grow with the batch.
CPU_ROWS = 4


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of `R` requests, each array `[R]`; `position` is how many tokens a request has.

    `asked`, `prompts`: which requests ask for logprobs of sampled tokens, and of prompt tokens; `min_p` and
    `adjustments`: see SamplingParams. Each is None when no request uses it.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]
    asked: Asked | None = None
    min_p: NDArray[np.float32] | None = None
    adjustments: Adjustments | None = None
    prompts: PromptAsked | None = None

    @property
    def likeliest(self) -> bool:
        """Whether every request is greedy and takes the argmax of the model's own logits."""
        return self.adjustments is None and not (self.temperature > 0).any()


def part(batch: SamplingBatch, start: int, count: int) -> SamplingBatch:
    """The parameters of `count` requests from `start` on, without logprobs."""
    rows = slice(start, start + count)
    return SamplingBatch(
        batch.temperature[rows], batch.top_k[rows], batch.top_p[rows], batch.seed[rows], batch.position[rows],
        min_p=None if batch.min_p is None else batch.min_p[rows],
        adjustments=None if batch.adjustments is None else batch.adjustments.part(start, count),
    )  # fmt: skip


def adjusted(
    logits: Tensor, how: SamplingBatch, newest: Tensor | None, *, fused: bool = False
) -> tuple[Tensor, SamplingBatch]:
    """The logits with the adjustments applied, and the parameters without them; arguments as in `sample` and
    `Adjustments.apply`."""
    if how.adjustments is None:
        return logits, how
    assert newest is not None
    return how.adjustments.apply(logits, newest, fused=fused), replace(how, adjustments=None)


def sample(logits: Tensor, how: SamplingBatch, newest: Tensor | None = None) -> Tensor:
    """Sample tokens `[R]` int64 from logits `[R, vocab]`. `newest` `[R]`, needed for adjustments: the last
    token of each request that decodes.

    temperature 0 takes the argmax (the first of equals). Otherwise the softmax of logits / temperature is
    cut to the tokens that are at least min_p as likely as the most likely one, then to the top_k most likely,
    then to the smallest set that holds top_p of the mass. A token is sampled by inverting the cumulative
    distribution at a uniform number that depends only on the request's seed and position.
    """
    logits, how = adjusted(logits, how, newest)
    if (how.temperature <= 0).all():
        return _argmax(logits)
    rows = len(logits) if logits.device.type != "cpu" else max(CPU_ROWS, torch.get_num_threads())
    starts = range(0, len(logits), rows)
    return torch.cat([_sample(logits[start : start + rows], part(how, start, rows)) for start in starts])


def _sample(logits: Tensor, how: SamplingBatch) -> Tensor:
    greedy, device = how.temperature <= 0, logits.device
    temperature = to_device(np.where(greedy, 1, how.temperature), device)
    below_best = logits.float() - logits.amax(-1, keepdim=True)  # the largest is 0 at any temperature
    probabilities = torch.softmax(below_best / temperature[:, None], -1)
    if how.min_p is not None:
        least = probabilities.amax(-1, keepdim=True) * to_device(how.min_p, device)[:, None]
        probabilities *= probabilities >= least
    if (how.top_k > 0).any() or (how.top_p < 1).any():
        descending, order = probabilities.sort(dim=-1, descending=True, stable=True)
        # Back to the order of the vocabulary, where tokens of nearly equal probability keep their places.
        probabilities = torch.zeros_like(probabilities).scatter_(-1, order, _top_k_top_p(descending, how))
    cumulative = probabilities.double().cumsum(-1)
    mark = to_device(uniform(how.seed, how.position), device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, mark, right=True).clamp_(max=logits.shape[-1] - 1).squeeze(-1)
    return torch.where(to_device(greedy, device), _argmax(logits), tokens)


def _argmax(logits: Tensor) -> Tensor:
    """The first of the largest; on a CPU, NumPy finds it in a ninth of PyTorch's time."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.float().numpy().argmax(-1))
    return logits.argmax(-1)


def _top_k_top_p(sorted_probabilities: Tensor, how: SamplingBatch) -> Tensor:
    """Zero what top_k and top_p exclude. Rows are sorted in descending order; the first always stays."""
    device = sorted_probabilities.device
    vocab = sorted_probabilities.shape[-1]
    top_k = to_device(np.where(how.top_k > 0, how.top_k, vocab), device)[:, None]
    kept = sorted_probabilities * (torch.arange(vocab, device=device) < top_k)
    top_p = to_device(how.top_p, device)[:, None]
    sums = kept.cumsum(-1, dtype=torch.float64)  # a sum of one row alone would be split over the threads
    keep = (sums - kept < top_p * sums[:, -1:]) | (top_p >= 1)
    keep[:, 0] = True
    return kept * keep


def uniform(seed: NDArray[np.uint64], position: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1): splitmix64 (Steele, Lea, Flood 2014) of seed and position."""
    with np.errstate(over="ignore"):
        z = seed + (position.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    numbers: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
