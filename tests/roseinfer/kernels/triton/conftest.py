"""Inputs and comparisons of kernel tests: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from roseinfer.e4m3 import to_e4m3

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-5
examples = settings(max_examples=6)
seeds = st.integers(0, 1000)


collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """On a GPU Triton's compiler is a process."""
    item.add_marker("integration" if DEVICE.type == "cuda" else "unit")


def draw(seed: int, *shape: int) -> Tensor:
    """Normally distributed numbers of `shape`, float32, on DEVICE."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def storable(x: Tensor) -> Tensor:
    """`x` rounded to 8-bit floats. Triton's interpreter truncates where a GPU rounds: it must not have to."""
    return x if DEVICE.type == "cuda" else to_e4m3(x).to(x.dtype)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
