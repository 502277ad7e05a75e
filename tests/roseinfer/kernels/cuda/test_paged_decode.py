"""Launches of attention in CUDA C++."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from roseinfer.kernels.cuda import paged_decode


@pytest.mark.parametrize("dim", [32, 64, 128, 256])
def test_a_block_has_a_thread_for_each_element_of_a_head(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[dict[str, int], int]] = []

    def kernel(file: str, function: str, *defines: tuple[str, int]) -> Callable[..., None]:
        return lambda grid, threads, args: launched.append((dict(defines), threads))

    monkeypatch.setattr(paged_decode, "kernel", kernel)
    q, k, v, out = (torch.zeros(1, heads, dim).half() for heads in (2, 1, 1, 2))
    table, rows, lengths = torch.zeros(1, 1).int(), torch.zeros(1).int(), torch.ones(1).int()
    paged_decode.launch(q, k, v, k.clone(), v.clone(), table, rows, lengths, out, out, 16, 1)
    ((defines, threads),) = launched
    assert threads == 32 * defines["WARPS"] >= defines["DIM"] == dim
