"""Kernels that read a step's arrays from pinned host memory and write its results there, as a copy engine
would delay the next step.

Host and device both count the steps and use the slots in turn. The device's counter is called a ticket.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait

_PROGRAMS = 32
_BLOCK = 512


@triton.jit(do_not_specialize=["count", "rows"])
def _read_slot(
    source_ptr, ticket_ptr, out_ptr, table_ptr, count, rows,
    SLOTS: tl.constexpr, WORDS: tl.constexpr, WIDTH: tl.constexpr, PAD_WIDTH: tl.constexpr,
    PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    at = source_ptr + tl.atomic_add(ticket_ptr, 1) // PROGRAMS % SLOTS * WORDS
    for start in range(program * BLOCK, count, PROGRAMS * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(at + i, i < count), i < count)
    if WIDTH:
        at += count
        changed = tl.load(at)
        e = tl.arange(0, PAD_WIDTH)
        for index in range(program, changed, PROGRAMS):
            row = tl.load(at + 1 + index)
            line = tl.load(at + 1 + rows + index * WIDTH + e, e < WIDTH)
            tl.store(table_ptr + row * WIDTH + e, line, e < WIDTH)


def read_slot(source: Tensor, ticket: Tensor, out: Tensor, table: Tensor | None = None) -> None:
    """Copy a slot of `source` `[slots, words]` to `out` `[n]`, both int32; the next slot at the next call.

    Args:
        source: on the device or in pinned memory.
        ticket: a counter `[1]` int64 on the device, zero at first, for this source alone.
        table: `[rows, width]` int32. After the `n` words the slot has a count, then that many row numbers in
            `rows` places, then that many rows, which replace those of the table.
    """
    slots, words = source.shape
    rows, width = table.shape if table is not None else (0, 0)
    _read_slot[(_PROGRAMS,)](
        source, ticket, out, out if table is None else table, len(out), rows, SLOTS=slots, WORDS=words,
        WIDTH=width, PAD_WIDTH=triton.next_power_of_2(width), PROGRAMS=_PROGRAMS, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _write_slot(x_ptr, target_ptr, ticket_ptr, count, SLOTS: tl.constexpr, WORDS: tl.constexpr,
          PAD_WORDS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    pdl_wait(EARLY)
    at = target_ptr + tl.atomic_add(ticket_ptr, 1) % SLOTS * WORDS
    i = tl.arange(0, PAD_WORDS)
    tl.store(at + i, tl.load(x_ptr + i, i < count), i < count)


def write_slot(x: Tensor, target: Tensor, ticket: Tensor) -> None:
    """Copy `x` `[n]` to a slot of `target` `[slots, words]`, both int64, `target` in pinned memory; the next
    slot at the next call. `ticket`: a counter `[1]` int64 on the device, zero at first, for this target
    alone."""
    slots, words = target.shape
    _write_slot[(1,)](
        x, target, ticket, len(x), SLOTS=slots, WORDS=words, PAD_WORDS=triton.next_power_of_2(words),
        num_warps=1, **early(x.device),
    )  # fmt: skip


def ticket(device: torch.device) -> Tensor:
    """A new counter, `[1]` int64, for `read_slot` or `write_slot`."""
    return torch.zeros(1, dtype=torch.int64, device=device)
