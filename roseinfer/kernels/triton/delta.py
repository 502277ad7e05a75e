"""One token of each request through a gated delta layer: its convolution, then its rule and its norm. States
are changed in place. Reference: `roseinfer.models.delta.GatedDelta`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait

#: Channels of a program of the convolution, heads of a program of the norm.
_CHANNELS, _HEADS = 512, 8
#: Heads of all requests up to which a program of the rule has 32 values, and 64 with more. Measured on an
#: H200 with 8 and 64 requests of 32 heads, 2026-11-30.
_FEW_HEADS = 256


@triton.jit
def gates(beta, alpha, decay):
    """The share of a token's change that is made, and the logarithm by which the state before it shrinks."""
    softplus = tl.maximum(alpha, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(alpha)))
    return 1.0 / (1.0 + tl.exp(-beta)), decay * softplus


@triton.jit
def _convolve(
    x_ptr, stride, kept_ptr, kernel_ptr, rows_ptr, out_ptr, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < CHANNELS
    pdl_wait(EARLY)
    kept = kept_ptr + tl.load(rows_ptr + token).to(tl.int64) * ((TAPS - 1) * CHANNELS) + c
    newest = tl.load(x_ptr + token * stride + c, inside, 0.0).to(tl.float32)
    total = newest * tl.load(kernel_ptr + (TAPS - 1) * CHANNELS + c, inside, 0.0)
    for tap in tl.static_range(TAPS - 1):
        value = tl.load(kept + tap * CHANNELS, inside, 0.0)
        total += value * tl.load(kernel_ptr + tap * CHANNELS + c, inside, 0.0)
        if tap > 0:
            tl.store(kept + (tap - 1) * CHANNELS, value, inside)
    tl.store(kept + (TAPS - 2) * CHANNELS, newest, inside)
    tl.store(out_ptr + token * CHANNELS + c, total / (1.0 + tl.exp(-total)), inside)


@triton.jit
def _rule(
    convolved_ptr, x_ptr, stride, decay_ptr, bias_ptr, matrices_ptr, rows_ptr, out_ptr, tiny, scale,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    PAD_KEYS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK values of a head."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, j = tl.arange(0, PAD_KEYS), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    in_keys, in_values = i < KEYS, j < VALUES
    decay = tl.load(decay_ptr + head)
    bias = tl.load(bias_ptr + head)
    pdl_wait(EARLY)
    place = tl.load(rows_ptr + token).to(tl.int64) * HEADS + head
    matrix = matrices_ptr + place * (KEYS * VALUES) + i[:, None] * VALUES + j[None, :]
    inside = in_keys[:, None] & in_values[None, :]
    state = tl.load(matrix, inside, 0.0)
    channels: tl.constexpr = 2 * KEY_HEADS * KEYS + HEADS * VALUES
    row = convolved_ptr + token * channels
    q_at = row + head // (HEADS // KEY_HEADS) * KEYS + i
    q = tl.load(q_at, in_keys, 0.0)
    k = tl.load(q_at + KEY_HEADS * KEYS, in_keys, 0.0)
    v = tl.load(row + 2 * KEY_HEADS * KEYS + head * VALUES + j, in_values, 0.0)
    q *= tl.rsqrt(tl.sum(q * q, 0) + tiny) * scale
    k *= tl.rsqrt(tl.sum(k * k, 0) + tiny)
    rest = x_ptr + token * stride + channels + HEADS * VALUES + head
    alpha = tl.load(rest + HEADS).to(tl.float32) + bias
    beta, shrinks = gates(tl.load(rest).to(tl.float32), alpha, decay)
    state *= tl.exp(shrinks)
    change = (v - tl.sum(state * k[:, None], 0)) * beta
    state += k[:, None] * change[None, :]
    tl.store(matrix, state, inside)
    out = tl.sum(state * q[:, None], 0)
    at = out_ptr + (token * HEADS + head) * VALUES + j
    tl.store(at, out.to(out_ptr.dtype.element_ty), in_values)


@triton.jit
def _norm(
    x_ptr, stride, channels, gain_ptr, out_ptr, eps, HEADS: tl.constexpr, VALUES: tl.constexpr,
    BLOCK: tl.constexpr, PAD_VALUES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK heads of a token."""
    token = tl.program_id(0).to(tl.int64)
    h, j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD_VALUES)
    mask = (h < HEADS)[:, None] & (j < VALUES)[None, :]
    at = h[:, None] * VALUES + j[None, :]
    gain = tl.load(gain_ptr + j, j < VALUES, 0.0)
    pdl_wait(EARLY)
    out = tl.load(out_ptr + token * (HEADS * VALUES) + at, mask, 0.0).to(tl.float32)
    gate = tl.load(x_ptr + token * stride + channels + at, mask, 0.0).to(tl.float32)
    out *= (
        tl.rsqrt(tl.sum(out * out, 1) / VALUES + eps)[:, None] * gain[None, :] * gate / (1.0 + tl.exp(-gate))
    )
    tl.store(out_ptr + token * (HEADS * VALUES) + at, out.to(out_ptr.dtype.element_ty), mask)


def gated_norm_(out: Tensor, x: Tensor, gain: Tensor, eps: float, heads: int) -> Tensor:
    """Normalise each head of `out` `[T, heads · values]` in place, times `gain` `[values]` and the SiLU of
    the gates in `x`. Returns `out`."""
    values, inner = len(gain), out.shape[1]
    _norm[(len(out), triton.cdiv(heads, _HEADS))](
        x, x.stride(0), x.shape[1] - inner - 2 * heads, gain, out, eps, HEADS=heads, VALUES=values,
        BLOCK=_HEADS, PAD_VALUES=triton.next_power_of_2(values), num_warps=2, **early(x.device),
    )  # fmt: skip
    return out


def delta_decode(
    x: Tensor, kernel: Tensor, decay: Tensor, bias: Tensor, gain: Tensor, key_heads: int, key_dim: int,
    eps: float, tiny: float, rows: Tensor, matrices: Tensor, kept: Tensor,
) -> Tensor:  # fmt: skip
    """Do what `GatedDelta` does with one token of each of `D` requests.

    Args:
        x: `[D, inputs]`, a row of which is contiguous.
        kernel, decay, bias, gain, key_heads, key_dim, eps: as in GatedDelta.
        tiny: what is added to the squared lengths of queries and keys.
        rows: `[D]`, running rows, each once, but for padding.
        matrices, kept: a layer of States, of which these rows are changed.

    Returns:
        `[D, heads · value_dim]` in the dtype of x.
    """
    count, (taps, channels), heads, values = len(x), kernel.shape, len(decay), len(gain)
    convolved = torch.empty(count, channels, dtype=torch.float32, device=x.device)
    _convolve[(count, triton.cdiv(channels, _CHANNELS))](
        x, x.stride(0), kept, kernel, rows, convolved, CHANNELS=channels, TAPS=taps, BLOCK=_CHANNELS,
        num_warps=4, **early(x.device),
    )  # fmt: skip
    out = torch.empty(count, heads * values, dtype=x.dtype, device=x.device)
    block = 32 if count * heads <= _FEW_HEADS else 64
    _rule[(count, heads, triton.cdiv(values, block))](
        convolved, x, x.stride(0), decay, bias, matrices, rows, out, tiny, key_dim**-0.5, HEADS=heads,
        KEY_HEADS=key_heads, KEYS=key_dim, VALUES=values, PAD_KEYS=triton.next_power_of_2(key_dim),
        BLOCK=block, num_warps=4, **early(x.device),
    )  # fmt: skip
    return gated_norm_(out, x, gain, eps, heads)
