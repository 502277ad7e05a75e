"""Prompts through a gated delta layer: convolution, chunked rule (Yang, Kautz, Hatamizadeh, 2025) and norm.
States are changed in place. Reference: `roseinfer.models.delta.GatedDelta`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.capability import shared_memory
from roseinfer.kernels.triton.delta import gated_norm_, gates

#: Tokens that are computed together, by matrix products; the state goes from one such chunk to the next.
CHUNK = 64
#: Channels of a program of the convolution, values of a program of the rule. Measured on an H200, 2026-11-30,
#: with 1 and 4 prompts of 1,024 tokens, as are warps and stages.
_CHANNELS, _VALUES = 64, 64
#: Bytes of shared memory with which a program's inputs are loaded ahead.
_STAGED = 200 << 10


@triton.jit(do_not_specialize=["count", "chunks", "prompts"])
def _convolve(
    x_ptr, stride, past_ptr, kept_ptr, kernel_ptr, tokens_ptr, count, chunks_ptr, chunks, prompts_ptr,
    prompts, out_ptr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The tokens of a chunk, BLOCK channels of them. A prompt's last chunk keeps its last inputs, too."""
    t, c = tl.arange(0, CHUNK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(chunks_ptr + tl.program_id(0)).to(tl.int64)
    length = tl.load(chunks_ptr + chunks + tl.program_id(0))
    prompt = tl.load(tokens_ptr + first).to(tl.int64)
    start = tl.load(tokens_ptr + count + first)
    place = start + t
    in_channels = c < CHANNELS
    inside = (t < length)[:, None] & in_channels[None, :]
    x = x_ptr + first * stride + c
    past = past_ptr + prompt * ((TAPS - 1) * CHANNELS) + c
    total = tl.zeros((CHUNK, BLOCK), tl.float32)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        there = inside & (place >= back)[:, None]
        value = tl.load(x[None, :] + (t - back)[:, None] * stride, there, 0.0).to(tl.float32)
        total += value * tl.load(kernel_ptr + tap * CHANNELS + c, in_channels, 0.0)[None, :]
    if start == 0:
        for tap in tl.static_range(TAPS - 1):
            there = inside & (t + tap < TAPS - 1)[:, None]
            value = tl.load(past[None, :] + (t + tap)[:, None] * CHANNELS, there, 0.0)
            total += value * tl.load(kernel_ptr + tap * CHANNELS + c, in_channels, 0.0)[None, :]
    out = total / (1.0 + tl.exp(-total))
    at = out_ptr + (first + t)[:, None] * CHANNELS + c[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), inside)
    end = start + length
    if end == tl.load(prompts_ptr + 2 * prompts + prompt):
        kept = kept_ptr + tl.load(prompts_ptr + prompt).to(tl.int64) * ((TAPS - 1) * CHANNELS) + c
        for tap in tl.static_range(1, TAPS):
            back = TAPS - tap
            last = tl.load(x + (length - back) * stride, in_channels & (end >= back), 0.0).to(tl.float32)
            last += tl.load(past + (end + tap - 1) * CHANNELS, in_channels & (end < back), 0.0)
            tl.store(kept + (tap - 1) * CHANNELS, last, in_channels)


@triton.jit
def _product(a, b, DTYPE: tl.constexpr):
    """Their matrix product in float32: of operands in bfloat16, or nearly as exact as in float32."""
    if tl.float32 == DTYPE:
        return tl.dot(a.to(DTYPE), b.to(DTYPE), input_precision="tf32x3")
    return tl.dot(a.to(DTYPE), b.to(DTYPE))


@triton.jit(do_not_specialize=["chunks"])
def _solve(
    convolved_ptr, x_ptr, stride, decay_ptr, bias_ptr, chunks_ptr, chunks, new_ptr, predicted_ptr, within_ptr,
    factors_ptr, ends_ptr, tiny, scale, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEYS: tl.constexpr,
    VALUES: tl.constexpr, PAD_KEYS: tl.constexpr, PAD_VALUES: tl.constexpr, CHUNK: tl.constexpr,
    DTYPE: tl.constexpr, DOUBLINGS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk's part of a head, for which no state is needed. With `S` the state before the chunk, its tokens
    change `new - predicted @ S`, their results are `(f · queries) @ S + within @ change`, and the state after
    it is `exp(end) · S + (g · keys).T @ change`, with (f, g) the factors of a token."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, PAD_KEYS), tl.arange(0, PAD_VALUES)
    first = tl.load(chunks_ptr + chunk).to(tl.int64)
    inside = t < tl.load(chunks_ptr + chunks + chunk)
    channels: tl.constexpr = 2 * KEY_HEADS * KEYS + HEADS * VALUES
    keys_mask = inside[:, None] & (i < KEYS)[None, :]
    values_mask = inside[:, None] & (j < VALUES)[None, :]
    row = convolved_ptr + first * channels
    at = row + head // (HEADS // KEY_HEADS) * KEYS + t[:, None] * channels + i[None, :]
    q = tl.load(at, keys_mask, 0.0)
    k = tl.load(at + KEY_HEADS * KEYS, keys_mask, 0.0)
    v_at = row + 2 * KEY_HEADS * KEYS + head * VALUES + t[:, None] * channels + j[None, :]
    v = tl.load(v_at, values_mask, 0.0)
    q_by = tl.rsqrt(tl.sum(q.to(tl.float32) * q.to(tl.float32), 1) + tiny) * scale
    k_by = tl.rsqrt(tl.sum(k.to(tl.float32) * k.to(tl.float32), 1) + tiny)
    rest = x_ptr + first * stride + channels + HEADS * VALUES + head + t * stride
    alpha = tl.load(rest + HEADS, inside, 0.0).to(tl.float32) + tl.load(bias_ptr + head)
    beta, shrinks = gates(tl.load(rest, inside, 0.0).to(tl.float32), alpha, tl.load(decay_ptr + head))
    beta, decay = tl.where(inside, beta, 0.0), tl.where(inside, shrinks, 0.0)
    total, end = tl.cumsum(decay, 0), tl.sum(decay, 0)
    place = first * HEADS + head
    factor_at = factors_ptr + 2 * (place + t * HEADS)
    tl.store(factor_at, q_by * tl.exp(total), inside)
    tl.store(factor_at + 1, k_by * tl.exp(end - total), inside)
    tl.store(ends_ptr + place, end)
    later = t[:, None] >= t[None, :]
    shrunk = tl.exp(tl.where(later, total[:, None] - total[None, :], 0.0)) * k_by[None, :]
    within = tl.where(later, _product(q, tl.trans(k), DTYPE) * (shrunk * q_by[:, None]), 0.0)
    at = within_ptr + place * CHUNK + t[:, None] * (HEADS * CHUNK) + t[None, :]
    tl.store(at, within.to(DTYPE), inside[:, None])
    # The inverse of a unit lower triangle: those of its triangles on the diagonal, twice as large each time.
    # With X the inverses of two neighbours and B what is below the first one, it is X - X B X.
    earlier = t[:, None] > t[None, :]
    triangle = tl.where(earlier, _product(k, tl.trans(k), DTYPE) * (shrunk * (beta * k_by)[:, None]), 0.0)
    pairs = t[:, None] // 2 == t[None, :] // 2
    inverse = tl.where(t[:, None] == t[None, :], 1.0, 0.0) - tl.where(pairs, triangle, 0.0)
    for doubling in tl.static_range(1, DOUBLINGS):
        part = t >> doubling
        below = (part[:, None] == part[None, :] + 1) & (part[None, :] % 2 == 0)
        beside = tl.dot(inverse, tl.where(below, triangle, 0.0), input_precision=PRECISION)
        inverse -= tl.dot(beside, inverse, input_precision=PRECISION)
    predicted = _product(inverse * (beta * k_by * tl.exp(total))[None, :], k, DTYPE)
    at = place * KEYS + t[:, None] * (HEADS * KEYS) + i[None, :]
    tl.store(predicted_ptr + at, predicted.to(DTYPE), keys_mask)
    new = _product(inverse * beta[None, :], v, DTYPE)
    at = new_ptr + place * VALUES + t[:, None] * (HEADS * VALUES) + j[None, :]
    tl.store(at, new.to(DTYPE), values_mask)


@triton.jit(do_not_specialize=["prompts"])
def _advance(
    convolved_ptr, new_ptr, predicted_ptr, within_ptr, factors_ptr, ends_ptr, matrices_ptr, prompts_ptr,
    prompts, out_ptr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    PAD_KEYS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The results of a prompt's chunks, one after the other, for BLOCK values of a head."""
    prompt, head = tl.program_id(0), tl.program_id(1)
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, PAD_KEYS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    in_keys, in_values = i < KEYS, j < VALUES
    row = tl.load(prompts_ptr + prompt).to(tl.int64)
    first = tl.load(prompts_ptr + prompts + prompt).to(tl.int64)
    count = tl.load(prompts_ptr + 2 * prompts + prompt)
    continued = tl.load(prompts_ptr + 3 * prompts + prompt) > 0
    matrix = matrices_ptr + (row * HEADS + head) * (KEYS * VALUES) + i[:, None] * VALUES + j[None, :]
    both = in_keys[:, None] & in_values[None, :]
    state = tl.load(matrix, both & continued, 0.0)
    channels: tl.constexpr = 2 * KEY_HEADS * KEYS + HEADS * VALUES
    queries_at = head // (HEADS // KEY_HEADS) * KEYS + t[:, None] * channels + i[None, :]
    keys_at = t[:, None] * (HEADS * KEYS) + i[None, :]
    values_at = t[:, None] * (HEADS * VALUES) + j[None, :]
    place = first * HEADS + head
    queries_at += first * channels
    for at in range(0, count, CHUNK):
        inside = at + t < count
        keys_mask, values_mask = inside[:, None] & in_keys[None, :], inside[:, None] & in_values[None, :]
        predicted = tl.load(predicted_ptr + place * KEYS + keys_at, keys_mask, 0.0)
        change = tl.load(new_ptr + place * VALUES + values_at, values_mask, 0.0).to(tl.float32)
        change -= _product(predicted, state, DTYPE)
        queries = tl.load(convolved_ptr + queries_at, keys_mask, 0.0)
        factor_at = factors_ptr + 2 * (place + t * HEADS)
        out = _product(queries, state, DTYPE) * tl.load(factor_at, inside, 0.0)[:, None]
        within_at = t[:, None] * (HEADS * CHUNK) + t[None, :]
        within = tl.load(within_ptr + place * CHUNK + within_at, inside[:, None], 0.0)
        out += _product(within, change, DTYPE)
        tl.store(out_ptr + place * VALUES + values_at, out.to(DTYPE), values_mask)
        keys = tl.load(convolved_ptr + queries_at + KEY_HEADS * KEYS, keys_mask, 0.0)
        change *= tl.load(factor_at + 1, inside, 0.0)[:, None]
        state = state * tl.exp(tl.load(ends_ptr + place)) + _product(tl.trans(keys), change, DTYPE)
        place += CHUNK * HEADS
        queries_at += CHUNK * channels
    tl.store(matrix, state, both)


def delta_prompts(
    x: Tensor, kernel: Tensor, decay: Tensor, bias: Tensor, gain: Tensor, key_heads: int, key_dim: int,
    eps: float, tiny: float, tokens: Tensor, prompts: Tensor, chunks: Tensor, matrices: Tensor, kept: Tensor,
) -> Tensor:  # fmt: skip
    """Do what `GatedDelta` does with the prompts of a step.

    Args:
        x: `[T, inputs]`, a row of which is contiguous.
        kernel, decay, bias, gain, key_heads, key_dim, eps: as in GatedDelta.
        tiny: what is added to the squared lengths of queries and keys.
        tokens: `[2, T]`: each token's prompt, and its place in it. This and the next two are int32.
        prompts: `[4, B]`: running row, first token, number of tokens, and whether the row has a state.
        chunks: `[2, N]`: first token and number of tokens, at most CHUNK.
        matrices, kept: a layer of States, of which the prompts' rows are changed.

    Returns:
        `[T, heads · value_dim]` in the dtype of x. What is kept between kernels has it, too.
    """
    count, (taps, channels), heads, values = len(x), kernel.shape, len(decay), len(gain)
    past = torch.where(prompts[3, :, None, None] > 0, kept.index_select(0, prompts[0]), 0.0)
    convolved = x.new_empty(count, channels)
    _convolve[(chunks.shape[1], triton.cdiv(channels, _CHANNELS))](
        x, x.stride(0), past, kept, kernel, tokens, count, chunks, chunks.shape[1], prompts, prompts.shape[1],
        convolved, CHANNELS=channels, TAPS=taps, BLOCK=_CHANNELS, CHUNK=CHUNK, num_warps=4,
    )  # fmt: skip
    sizes = {"HEADS": heads, "KEYS": key_dim, "VALUES": values, "PAD_KEYS": triton.next_power_of_2(key_dim)}
    types = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    sizes |= {"CHUNK": CHUNK, "DTYPE": types[x.dtype], "KEY_HEADS": key_heads}
    new, predicted, within = (x.new_empty(count, heads, size) for size in (values, key_dim, CHUNK))
    factors, ends = (torch.empty(count, heads, size, device=x.device) for size in (2, 1))
    _solve[(chunks.shape[1], heads)](
        convolved, x, x.stride(0), decay, bias, chunks, chunks.shape[1], new, predicted, within, factors,
        ends, tiny, key_dim**-0.5, PAD_VALUES=triton.next_power_of_2(values), **sizes,
        DOUBLINGS=CHUNK.bit_length() - 1, PRECISION="tf32x3" if x.dtype == torch.float32 else "tf32",
        num_warps=4,
    )  # fmt: skip
    out = x.new_empty(count, heads * values)
    _advance[(prompts.shape[1], heads, triton.cdiv(values, _VALUES))](
        convolved, new, predicted, within, factors, ends, matrices, prompts, prompts.shape[1], out, **sizes,
        BLOCK=_VALUES, num_warps=4,
        num_stages=3 if x.dtype != torch.float32 and shared_memory(x.device) >= _STAGED else 1,
    )  # fmt: skip
    return gated_norm_(out, x, gain, eps, heads)
