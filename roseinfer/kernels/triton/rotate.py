"""QK norm and RoPE of queries and keys, in place, and the append of keys and values to the paged KV cache.

References: `Ops.rotate`, and `index_copy_` by slot, `to_e4m3`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.cuda.gqa_decode import Heads, Rotation
from roseinfer.kernels.triton.launch import early, pdl_wait
from roseinfer.kernels.triton.rounded import rounded


@triton.jit
def _rotated(at, gain_ptr, cos, sin, inside, eps, DIM: tl.constexpr, PAD_HALF: tl.constexpr,
             NORM: tl.constexpr):  # fmt: skip
    """Both halves of some heads after norm and RoPE, `[heads, dim / 2]` each; `at`: their first elements."""
    d = tl.arange(0, PAD_HALF)
    within = inside & (d < DIM // 2)[None, :]
    low = tl.load(at + d[None, :], within, 0.0).to(tl.float32)
    high = tl.load(at + DIM // 2 + d[None, :], within, 0.0).to(tl.float32)
    if NORM:
        by = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)
        low *= by[:, None] * tl.load(gain_ptr + d, d < DIM // 2, 0.0).to(tl.float32)[None, :]
        high *= by[:, None] * tl.load(gain_ptr + DIM // 2 + d, d < DIM // 2, 0.0).to(tl.float32)[None, :]
    return low * cos[None, :] - high * sin[None, :], high * cos[None, :] + low * sin[None, :], within


@triton.jit
def _rotate_heads(at, gain_ptr, cos, sin, inside, eps, DIM: tl.constexpr, PAD_HALF: tl.constexpr,
                  NORM: tl.constexpr):  # fmt: skip
    """Rotate in place as `_rotated` does; both halves are rounded."""
    d = tl.arange(0, PAD_HALF)
    low, high, within = _rotated(at, gain_ptr, cos, sin, inside, eps, DIM, PAD_HALF, NORM)
    low = low.to(at.dtype.element_ty)
    high = high.to(at.dtype.element_ty)
    tl.store(at + d[None, :], low, within)
    tl.store(at + DIM // 2 + d[None, :], high, within)
    return low, high, within


@triton.jit
def _store(to, at, x, inside, FP8: tl.constexpr):
    """Store `x` in the cache at `to`, and with FP8 the rounded value back at `at`."""
    x = rounded(x, FP8)
    tl.store(to, x, inside)
    if FP8:
        tl.store(at, x.to(at.dtype.element_ty), inside)


@triton.jit
def _rotate(
    qkv_ptr, q_gain_ptr, k_gain_ptr, turns_ptr, positions_ptr, keys_ptr, values_ptr, slots_ptr, stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD_HEADS: tl.constexpr,
    PAD_KV: tl.constexpr, PAD_HALF: tl.constexpr, NORM: tl.constexpr, STORE: tl.constexpr,
    FP8: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, PAD_HALF)
    pdl_wait(EARLY)
    half: tl.constexpr = DIM // 2
    turn = turns_ptr + tl.load(positions_ptr + token).to(tl.int64) * DIM
    cos = tl.load(turn + d, d < half, 0.0)
    sin = tl.load(turn + half + d, d < half, 0.0)
    row = qkv_ptr + token * stride
    if tl.program_id(1) == 0:
        heads = tl.arange(0, PAD_HEADS)
        _rotate_heads(
            row + heads[:, None] * DIM,
            q_gain_ptr,
            cos,
            sin,
            (heads < HEADS)[:, None],
            eps,
            DIM,
            PAD_HALF,
            NORM,
        )
    else:
        h = tl.arange(0, PAD_KV)
        key = row + (HEADS + h[:, None]) * DIM
        low, high, inside = _rotate_heads(
            key, k_gain_ptr, cos, sin, (h < KV_HEADS)[:, None], eps, DIM, PAD_HALF, NORM
        )
        if STORE:
            slot = tl.load(slots_ptr + token).to(tl.int64)
            at = key + d[None, :]
            if slot >= 0:
                place = slot * (KV_HEADS * DIM) + h[:, None] * DIM + d[None, :]
                _store(keys_ptr + place, at, low, inside, FP8)
                _store(keys_ptr + place + half, at + half, high, inside, FP8)
                at += KV_HEADS * DIM
                _store(values_ptr + place, at, tl.load(at, inside), inside, FP8)
                _store(values_ptr + place + half, at + half, tl.load(at + half, inside), inside, FP8)
            else:
                none = tl.zeros([PAD_KV, PAD_HALF], at.dtype.element_ty)
                tl.store(at, none, inside)
                tl.store(at + half, none, inside)
                tl.store(at + KV_HEADS * DIM, none, inside)
                tl.store(at + KV_HEADS * DIM + half, none, inside)


def rotate_(
    qkv: Tensor, positions: Tensor, heads: Heads, rotation: Rotation,
    store: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    """Apply norms and RoPE in place to queries and keys of `qkv` `[T, (queries + 2 · keys) · dim]`, at
    `positions` `[T]`.

    `store`: one layer's cache of keys and of values, `[slots, keys, dim]` each, and the slots `[T]` to which
    keys and values go. Those in `qkv` become what the cache holds, which an FP8 cache rounds. With slot −1
    nothing is stored, and they become 0, as attention may read them with a weight of 0.
    """
    keys, values, slots = store if store is not None else (qkv, qkv, positions)
    q_gain, k_gain = rotation.q_gain, rotation.k_gain
    _rotate[(len(qkv), 2)](
        qkv, qkv if q_gain is None else q_gain, qkv if k_gain is None else k_gain, rotation.turns, positions,
        keys, values, slots, qkv.stride(0), rotation.eps, HEADS=heads.queries, KV_HEADS=heads.keys,
        DIM=heads.dim, PAD_HEADS=triton.next_power_of_2(heads.queries),
        PAD_KV=triton.next_power_of_2(heads.keys), PAD_HALF=triton.next_power_of_2(heads.dim // 2),
        NORM=q_gain is not None, STORE=store is not None,
        FP8=keys.dtype == E4M3, num_warps=2, **early(qkv.device),
    )  # fmt: skip
