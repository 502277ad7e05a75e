"""Prompts through a gated delta layer: convolution, chunked rule (Yang, Kautz, Hatamizadeh, 2025) and norm.
States are changed in place. Reference: `roseinfer.models.delta.GatedDelta`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.delta import gated_norm_, gates

#: Tokens that are computed together, by matrix products; the state goes from one such chunk to the next.
CHUNK = 64
#: Rows of the triangles that are inverted by substitution.
STEP = 16
#: Channels of a program of the convolution, values of a program of the rule.
_CHANNELS, _VALUES = 64, 32


@triton.jit(do_not_specialize=["count", "chunks", "prompts"])
def _convolve(
    x_ptr, stride, past_ptr, kept_ptr, kernel_ptr, tokens_ptr, count, chunks_ptr, chunks, prompts_ptr,
    prompts, out_ptr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The tokens of a chunk, BLOCK channels of them."""
    t, c = tl.arange(0, CHUNK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(chunks_ptr + tl.program_id(0)).to(tl.int64)
    length = tl.load(chunks_ptr + chunks + tl.program_id(0))
    prompt = tl.load(tokens_ptr + first).to(tl.int64)
    place = tl.load(tokens_ptr + count + first) + t
    row = tl.load(prompts_ptr + prompt).to(tl.int64)
    in_channels = (c < CHANNELS)[None, :]
    inside = (t < length)[:, None] & in_channels
    last = (t < length) & (place == tl.load(prompts_ptr + 2 * prompts + prompt) - 1)
    x = x_ptr + (first + t)[:, None] * stride + c[None, :]
    past = past_ptr + prompt * ((TAPS - 1) * CHANNELS) + c[None, :]
    kept = kept_ptr + row * ((TAPS - 1) * CHANNELS) + c[None, :]
    total = tl.zeros((CHUNK, BLOCK), tl.float32)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        before = (place < back)[:, None]
        value = tl.load(x - back * stride, inside & (before == 0), 0.0).to(tl.float32)
        value += tl.load(past + (place + tap)[:, None] * CHANNELS, inside & before, 0.0)
        total += value * tl.load(kernel_ptr + tap * CHANNELS + c[None, :], in_channels, 0.0)
        if tap > 0:
            tl.store(kept + (tap - 1) * CHANNELS + 0 * t[:, None], value, in_channels & last[:, None])
    out = total / (1.0 + tl.exp(-total))
    at = out_ptr + (first + t)[:, None] * CHANNELS + c[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def _product(a, b, DTYPE: tl.constexpr):
    """Their matrix product in float32: of operands in bfloat16, or nearly as exact as in float32."""
    if tl.float32 == DTYPE:
        return tl.dot(a.to(DTYPE), b.to(DTYPE), input_precision="tf32x3")
    return tl.dot(a.to(DTYPE), b.to(DTYPE))


@triton.jit(do_not_specialize=["chunks"])
def _solve(
    convolved_ptr, x_ptr, stride, decay_ptr, bias_ptr, chunks_ptr, chunks, queries_ptr, keys_ptr, new_ptr,
    predicted_ptr, within_ptr, ends_ptr, tiny, scale, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, PAD_KEYS: tl.constexpr, PAD_VALUES: tl.constexpr,
    CHUNK: tl.constexpr, DTYPE: tl.constexpr, STEP: tl.constexpr, DOUBLINGS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A chunk's part of a head, for which no state is needed. With `S` the state before the chunk, its tokens
    change `new - predicted @ S`, their results are `queries @ S + within @ change`, and the state after it is
    `exp(end) · S + keys.T @ change`."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, PAD_KEYS), tl.arange(0, PAD_VALUES)
    first = tl.load(chunks_ptr + chunk).to(tl.int64)
    inside = t < tl.load(chunks_ptr + chunks + chunk)
    channels: tl.constexpr = 2 * KEY_HEADS * KEYS + HEADS * VALUES
    keys_mask = inside[:, None] & (i < KEYS)[None, :]
    values_mask = inside[:, None] & (j < VALUES)[None, :]
    row = convolved_ptr + first * channels
    at = row + head // (HEADS // KEY_HEADS) * KEYS + t[:, None] * channels + i[None, :]
    q = tl.load(at, keys_mask, 0.0).to(tl.float32)
    k = tl.load(at + KEY_HEADS * KEYS, keys_mask, 0.0).to(tl.float32)
    q *= (tl.rsqrt(tl.sum(q * q, 1) + tiny) * scale)[:, None]
    k *= tl.rsqrt(tl.sum(k * k, 1) + tiny)[:, None]
    rest = x_ptr + first * stride + channels + HEADS * VALUES + head + t * stride
    alpha = tl.load(rest + HEADS, inside, 0.0).to(tl.float32) + tl.load(bias_ptr + head)
    beta, shrinks = gates(tl.load(rest, inside, 0.0).to(tl.float32), alpha, tl.load(decay_ptr + head))
    beta, decay = tl.where(inside, beta, 0.0), tl.where(inside, shrinks, 0.0)
    total, end = tl.cumsum(decay, 0), tl.sum(decay, 0)
    later = t[:, None] >= t[None, :]
    shrunk = tl.exp(tl.where(later, total[:, None] - total[None, :], 0.0))
    place = first * HEADS + head
    within = tl.where(later, _product(q, tl.trans(k), DTYPE) * shrunk, 0.0)
    at = within_ptr + place * CHUNK + t[:, None] * (HEADS * CHUNK) + t[None, :]
    tl.store(at, within.to(DTYPE), inside[:, None])
    at = place * KEYS + t[:, None] * (HEADS * KEYS) + i[None, :]
    tl.store(queries_ptr + at, (q * tl.exp(total)[:, None]).to(DTYPE), keys_mask)
    tl.store(keys_ptr + at, (k * tl.exp(end - total)[:, None]).to(DTYPE), keys_mask)
    tl.store(ends_ptr + place, end)
    # Row r of the inverse of a unit lower triangle L: that of the unit matrix less L[r, :r] @ inverse[:r].
    # So are all triangles of STEP rows on the diagonal inverted at once. Then two neighbours become one, as
    # often as it takes: with X their inverses and B what is below the first one and beside the second,
    # X - X B X.
    shrunk = tl.exp(tl.where(later, 0.0, total[None, :] - total[:, None]))
    transposed = tl.where(later, 0.0, _product(k, tl.trans(k), DTYPE) * shrunk * beta[None, :])
    inverse = tl.where(t[:, None] == t[None, :], 1.0, 0.0)
    together = t[:, None] // STEP == t[None, :] // STEP
    diagonal = tl.where(together, transposed, 0.0)
    for r in range(1, STEP):
        factors = tl.sum(tl.where(t[None, :] % STEP == r, diagonal, 0.0), 1)
        change = tl.sum(factors[:, None] * inverse, 0)
        inverse = tl.where(together & (t[:, None] % STEP == r), inverse - change[None, :], inverse)
    triangle = tl.trans(transposed)
    for doubling in tl.static_range(DOUBLINGS):
        part = t // (STEP << doubling)
        below = (part[:, None] == part[None, :] + 1) & (part[None, :] % 2 == 0)
        beside = tl.dot(inverse, tl.where(below, triangle, 0.0), input_precision=PRECISION)
        inverse -= tl.dot(beside, inverse, input_precision=PRECISION)
    predicted = _product(inverse, k * (beta * tl.exp(total))[:, None], DTYPE)
    tl.store(predicted_ptr + at, predicted.to(DTYPE), keys_mask)
    v = row + 2 * KEY_HEADS * KEYS + head * VALUES + t[:, None] * channels + j[None, :]
    new = _product(inverse, tl.load(v, values_mask, 0.0).to(tl.float32) * beta[:, None], DTYPE)
    at = new_ptr + place * VALUES + t[:, None] * (HEADS * VALUES) + j[None, :]
    tl.store(at, new.to(DTYPE), values_mask)


@triton.jit(do_not_specialize=["prompts"])
def _advance(
    queries_ptr, keys_ptr, new_ptr, predicted_ptr, within_ptr, ends_ptr, matrices_ptr, prompts_ptr, prompts,
    out_ptr, HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, PAD_KEYS: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The results of a prompt's chunks, one after the other, for BLOCK values of a head."""
    prompt, head = tl.program_id(0), tl.program_id(1)
    t, i, j = tl.arange(0, CHUNK), tl.arange(0, PAD_KEYS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    in_keys, in_values = i < KEYS, j < VALUES
    row = tl.load(prompts_ptr + prompt).to(tl.int64)
    place = tl.load(prompts_ptr + prompts + prompt).to(tl.int64) * HEADS + head
    count = tl.load(prompts_ptr + 2 * prompts + prompt)
    continued = tl.load(prompts_ptr + 3 * prompts + prompt) > 0
    matrix = matrices_ptr + (row * HEADS + head) * (KEYS * VALUES) + i[:, None] * VALUES + j[None, :]
    both = in_keys[:, None] & in_values[None, :]
    state = tl.load(matrix, both & continued, 0.0)
    keys_at = t[:, None] * (HEADS * KEYS) + i[None, :]
    values_at = t[:, None] * (HEADS * VALUES) + j[None, :]
    for at in range(0, count, CHUNK):
        inside = at + t < count
        keys_mask, values_mask = inside[:, None] & in_keys[None, :], inside[:, None] & in_values[None, :]
        predicted = tl.load(predicted_ptr + place * KEYS + keys_at, keys_mask, 0.0)
        change = tl.load(new_ptr + place * VALUES + values_at, values_mask, 0.0).to(tl.float32)
        change -= _product(predicted, state, DTYPE)
        queries = tl.load(queries_ptr + place * KEYS + keys_at, keys_mask, 0.0)
        out = _product(queries, state, DTYPE)
        within_at = t[:, None] * (HEADS * CHUNK) + t[None, :]
        within = tl.load(within_ptr + place * CHUNK + within_at, inside[:, None], 0.0)
        out += _product(within, change, DTYPE)
        tl.store(out_ptr + place * VALUES + values_at, out.to(DTYPE), values_mask)
        keys = tl.load(keys_ptr + place * KEYS + keys_at, keys_mask, 0.0)
        state = state * tl.exp(tl.load(ends_ptr + place)) + _product(tl.trans(keys), change, DTYPE)
        place += CHUNK * HEADS
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
        convolved, CHANNELS=channels, TAPS=taps, BLOCK=_CHANNELS, CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    sizes = {"HEADS": heads, "KEYS": key_dim, "VALUES": values, "PAD_KEYS": triton.next_power_of_2(key_dim)}
    types = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    sizes |= {"CHUNK": CHUNK, "DTYPE": types[x.dtype]}
    queries, keys, new, predicted, within = (
        x.new_empty(count, heads, size) for size in (key_dim, key_dim, values, key_dim, CHUNK)
    )
    ends = torch.empty(count, heads, device=x.device)
    _solve[(chunks.shape[1], heads)](
        convolved, x, x.stride(0), decay, bias, chunks, chunks.shape[1], queries, keys, new, predicted,
        within, ends, tiny, key_dim**-0.5, KEY_HEADS=key_heads, PAD_VALUES=triton.next_power_of_2(values),
        **sizes, STEP=STEP, DOUBLINGS=(CHUNK // STEP).bit_length() - 1,
        PRECISION="tf32x3" if x.dtype == torch.float32 else "tf32", num_warps=8,
    )  # fmt: skip
    out = x.new_empty(count, heads * values)
    _advance[(prompts.shape[1], heads, triton.cdiv(values, _VALUES))](
        queries, keys, new, predicted, within, ends, matrices, prompts, prompts.shape[1], out, **sizes,
        BLOCK=_VALUES, num_warps=4, num_stages=1 if x.dtype == torch.float32 else 2,
    )  # fmt: skip
    return gated_norm_(out, x, gain, eps, heads)
