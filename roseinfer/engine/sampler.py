"""Samples the next token of each request from its logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roseinfer.batch import Ints
from roseinfer.engine.adjustments import Adjustments
from roseinfer.engine.logprobs import LogprobRows, PromptLogprobRows
from roseinfer.request.params import SamplingRows
from roseinfer.tensors import to_device

#: Rows that a CPU samples at once, or one for each of its threads if these are more: temporaries, 1.2 MiB a
#: row for a vocabulary of 50,000, then stay in the processor's caches and do not grow with the batch.
CPU_ROWS = 4
#: Buckets of tokens of about the same probability, and how many of its bits do not count at most: a factor of
#: 2 then has 64 buckets, and the last bucket has the tokens below 2^-64 of the likeliest.
BUCKETS, MAX_SHIFT = 1 << 12, 17


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling of the next token of each of a step's `R` requests.

    Args:
        params: `[R]`, rows of SAMPLING.
        position: `[R]`, the tokens that each request has so far.
        logprob_rows: Requests that ask for logprobs of sampled tokens; None if there are none.
        adjustments: Changes of logits before sampling; None if there are none.
        prompts: Prompt tokens whose logprobs are asked for; None if there are none.
    """

    params: SamplingRows
    position: Ints
    logprob_rows: LogprobRows | None = None
    adjustments: Adjustments | None = None
    prompts: PromptLogprobRows | None = None


def is_greedy(params: SamplingRows) -> bool:
    """Return whether all of `params` `[R]` take the token with the largest logit."""
    return not (params["temperature"] > 0).any()


def sample(logits: Tensor, params: SamplingRows, position: Ints, *, cpu_rows: int = CPU_ROWS) -> Tensor:
    """Sample tokens `[R]` int64 from logits `[R, vocab]`, for `params` `[R]` and `position` `[R]` as in
    SamplingBatch. `cpu_rows`: as CPU_ROWS.

    temperature 0 takes the argmax (the first of equals). Otherwise the softmax of logits / temperature is
    cut to the tokens that are at least min_p as likely as the most likely one, then to the top_k most likely,
    then to the smallest set that holds top_p of the mass. A token is sampled by inverting the cumulative
    distribution at a uniform number that depends only on the request's seed and position.
    """
    tokens = _argmax(logits)
    drawn = np.flatnonzero(params["temperature"] > 0)
    drawn = drawn[np.argsort(_cuts(params[drawn]), kind="stable")]
    rows = len(logits) if logits.device.type != "cpu" else max(cpu_rows, torch.get_num_threads())
    for start in range(0, len(drawn), rows):
        part = drawn[start : start + rows]
        index = to_device(part, logits.device)
        tokens[index] = _draw(logits[index], params[part], position[part])
    return tokens


def _cuts(params: SamplingRows) -> NDArray[np.bool_]:
    return (params["top_k"] > 0) | (params["top_p"] < 1)


def _draw(logits: Tensor, params: SamplingRows, position: Ints) -> Tensor:
    """Sample as `sample` without greedy rows, and overwrite `logits`."""
    device = logits.device
    temperature = to_device(np.ascontiguousarray(params["temperature"]), device)
    logits = logits.float()
    logits -= logits.amax(-1, keepdim=True)  # the largest is 0 at any temperature
    logits /= temperature[:, None]
    probabilities = torch.softmax(logits, -1)
    if (params["min_p"] > 0).any():
        min_p = to_device(np.ascontiguousarray(params["min_p"]), device)[:, None]
        probabilities *= probabilities >= probabilities.amax(-1, keepdim=True) * min_p
    if _cuts(params).any():
        if device.type == "cpu":
            keep_likeliest(probabilities, params)
        else:
            descending, order = probabilities.sort(dim=-1, descending=True, stable=True)
            # Back to the order of the vocabulary, where tokens of nearly equal probability keep their places.
            kept = top_k_top_p(descending, params)
            probabilities = torch.zeros_like(probabilities).scatter_(-1, order, kept)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    mark = to_device(uniform(params["seed"], position), device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, mark, right=True).clamp_(max=logits.shape[-1] - 1).squeeze(-1)


def keep_likeliest(probabilities: Tensor, params: SamplingRows) -> None:
    """Zero what top_k and top_p exclude from `probabilities` `[R, vocab]`, on a CPU: as `top_k_top_p`, but
    only tokens of about the same probability are sorted."""
    bits = probabilities.view(torch.int32)  # ordered like the numbers, as none is negative
    most = probabilities.amax(-1, keepdim=True).view(torch.int32)
    least = probabilities.amin(-1, keepdim=True).view(torch.int32)
    shift = torch.frexp((most - least) / BUCKETS).exponent.clamp_(0, MAX_SHIFT)
    buckets = ((most - bits) >> shift).clamp_(max=BUCKETS - 1).long()
    rows = probabilities.numpy(), buckets.numpy()

    def keep(weights: Tensor, share: NDArray[np.float64], *, of_all: bool) -> None:
        """Keep the likeliest tokens, the first of equals first, until their `weights` `[R, vocab]` reach the
        `share` `[R]`; infinite: all tokens."""
        sums = torch.zeros(len(bits), BUCKETS, dtype=torch.float64)
        sums = sums.scatter_add_(-1, buckets, weights).cumsum(-1)
        goals = share * sums[:, -1].numpy() if of_all else share
        last = torch.searchsorted(sums, torch.from_numpy(goals)[:, None])
        below = (most - ((last + 1) << shift).int()).view(torch.float32)  # the largest below that bucket
        for row, (tokens, bucket_of) in enumerate(zip(*rows, strict=True)):
            bucket, goal = int(last[row]), goals[row]
            if bucket < BUCKETS - 1:
                torch.threshold_(probabilities[row], float(below[row]), 0)
            if bucket < BUCKETS:
                members = np.flatnonzero(bucket_of == bucket)
                members = members[np.argsort(-tokens[members], kind="stable")]
                masses = weights[row].numpy()[members]
                before = masses.cumsum() - masses + (float(sums[row, bucket - 1]) if bucket else 0.0)
                tokens[members[before >= goal]] = 0

    top_k, top_p = params["top_k"], params["top_p"].astype(np.float64)
    if (top_k > 0).any():
        ones = torch.ones(probabilities.shape, dtype=torch.float64)
        keep(ones, np.where(top_k > 0, top_k, np.inf), of_all=False)
    if (top_p < 1).any():
        keep(probabilities.double(), np.where(top_p < 1, top_p, np.inf), of_all=True)


def _argmax(logits: Tensor) -> Tensor:
    """The first of the largest; on a CPU, NumPy finds it in a ninth of PyTorch's time."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.float().numpy().argmax(-1))
    return logits.argmax(-1)


def top_k_top_p(sorted_probabilities: Tensor, params: SamplingRows) -> Tensor:
    """Zero what top_k and top_p exclude in probabilities `[R, vocab]`, sorted in descending order; the first
    of a row always stays."""
    device = sorted_probabilities.device
    vocab = sorted_probabilities.shape[-1]
    top_k = to_device(np.where(params["top_k"] > 0, params["top_k"], vocab), device)[:, None]
    likeliest = sorted_probabilities * (torch.arange(vocab, device=device) < top_k)
    top_p = to_device(np.ascontiguousarray(params["top_p"]), device)[:, None]
    sums = likeliest.cumsum(-1, dtype=torch.float64)  # a sum of one row alone would be split over the threads
    keep = (sums - likeliest < top_p * sums[:, -1:]) | (top_p >= 1)
    keep[:, 0] = True
    return likeliest * keep


def uniform(seed: NDArray[np.uint64], position: Ints) -> NDArray[np.float64]:
    """Return numbers `[R]` in [0, 1): splitmix64 (Steele, Lea, Flood 2014) of `seed` `[R]` and `position`
    `[R]`."""
    with np.errstate(over="ignore"):
        z = seed + (position.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    numbers: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
