"""Attention of prompts: the Triton kernel against PyTorch's operators, FlashInfer's adapter, the choice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from roseinfer.attention.prefill import Spans, sdpa
from roseinfer.attention.prefill_backends import choose
from roseinfer.attention.torch_paged import gather
from roseinfer.config import ConfigError, PrefillBackend
from roseinfer.e4m3 import to_e4m3
from roseinfer.kernels.triton.gather_kv import gather_kv

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.float16
#: Of outputs near 1.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Step:
    """`prompts`: how many new tokens each has, after how many cached ones; `padding` rows come last."""

    def __init__(
        self,
        seed: int,
        shape: tuple[int, int, int],
        prompts: list[tuple[int, int]],
        padding: int = 0,
        dtype: torch.dtype = HALF,
    ) -> None:
        heads, kv_heads, dim = shape
        queries, keys = [new for new, _ in prompts], [new + cached for new, cached in prompts]
        self.spans = Spans(starts(queries), starts(keys), max(queries), max(keys))
        generator = torch.Generator().manual_seed(seed)
        rows, cached = sum(queries) + padding, sum(keys) + padding
        qkv = torch.randn(cached, heads + 2 * kv_heads, dim, generator=generator).to(DEVICE, dtype)
        q, self.k, self.v = qkv.split([heads, kv_heads, kv_heads], 1)
        self.q = q[:rows]

    def check(self, got: Tensor) -> None:
        assert got.dtype == self.q.dtype and got.shape == self.q.shape
        expected = sdpa(self.q.float(), self.k.float(), self.v.float(), self.spans)
        count, tolerance = int(self.spans.query[-1]), TOLERANCES[got.dtype]
        torch.testing.assert_close(got[:count].float(), expected[:count], rtol=tolerance, atol=tolerance)


def starts(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=DEVICE)


lengths = st.one_of(st.sampled_from([0, 1, 31, 32, 33, 64, 65]), st.integers(1, 80))
steps = st.builds(
    Step,
    st.integers(0, 1000),
    st.sampled_from([(4, 1, 32), (4, 2, 64), (2, 2, 24), (2, 1, 128)]),
    st.lists(st.tuples(lengths, st.one_of(st.just(0), st.integers(1, 60))), min_size=1, max_size=3),
    st.sampled_from([0, 40]),
    st.sampled_from(list(TOLERANCES) if DEVICE.type == "cuda" else [torch.float32, HALF]),
)


@settings(max_examples=5)
@given(steps)
@example(Step(0, (2, 1, 32), [(1, 0)] * 130))  # more prompts than one compiled kernel serves
def test_triton(step: Step) -> None:
    attend = choose("triton", step.q.shape[2], step.q.dtype, DEVICE).attend
    step.check(attend(step.q, step.k, step.v, step.spans))


@settings(max_examples=8)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.sampled_from([(1, 32), (2, 24)]),
    st.booleans(),
)
def test_keys_and_values_out_of_blocks(seed, lengths, shape, fp8):
    """Into more rows than there are, of which the rest is left alone; two empty prompts come last."""
    generator = torch.Generator().manual_seed(seed)
    size, most, count = 4, 10, len(lengths)
    table = torch.randperm(most * (count + 1), generator=generator).view(count + 1, most).int().to(DEVICE)
    rows = torch.randperm(count + 1, generator=generator).int().to(DEVICE)
    cache = torch.randn(2, table.numel() * size, *shape, generator=generator).to(DEVICE)
    keys, values = to_e4m3(cache) if fp8 else cache
    gathered = torch.full((2, sum(lengths) + 11, *shape), torch.nan, device=DEVICE)
    key = starts([*lengths, 0, 0])
    padded = torch.cat((rows[:count], rows[:1], rows[:1]))
    gather_kv(keys, values, key, table, padded, size, *gathered)
    slots = (table[..., None] * size + torch.arange(size, device=DEVICE)).flatten(1)
    at = torch.cat([slots[row, :length] for row, length in zip(rows, lengths, strict=False)])
    for got, source in zip(gathered, (keys, values), strict=True):
        assert torch.equal(got[: len(at)], gather(source, at, got.dtype))
        assert got[len(at) :].isnan().all()


def test_triton_takes_the_arrays_of_a_graph() -> None:
    """Three prompts in 160 rows; their arrays are padded with empty prompts."""
    step = Step(3, (4, 4, 32), [(70, 0), (1, 0), (30, 0)], 59)
    padded = torch.cat((step.spans.query, step.spans.query[-1].repeat(61)))
    attend = choose("triton", 32, HALF, DEVICE).attend
    step.check(attend(step.q, step.k, step.v, Spans(padded, padded, 160, 160)))


FLASHINFER = """
import torch
from roseinfer.attention.prefill import Spans, sdpa

class BatchPrefillWithRaggedKVCacheWrapper:
    plans = 0

    def __init__(self, float_workspace_buffer, kv_layout):
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"

    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, causal, q_data_type):
        assert causal
        self.planned = num_qo_heads, num_kv_heads, head_dim_qk, q_data_type
        self.spans = Spans(qo_indptr, kv_indptr, 0, 0)
        type(self).plans += 1

    def run(self, q, k, v):
        assert (q.shape[1], k.shape[1], q.shape[2], q.dtype) == self.planned
        return sdpa(q, k, v, self.spans)
"""


@pytest.fixture
def flashinfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of the signatures that FlashInfer documents, which computes with PyTorch's operators."""
    (tmp_path / "flashinfer.py").write_text(FLASHINFER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    yield
    sys.modules.pop("flashinfer", None)


@pytest.mark.usefixtures("flashinfer")
def test_flashinfer_plans_once_for_all_layers_of_a_step() -> None:
    backend = choose("auto", 64, HALF, DEVICE)
    assert backend.name == "flashinfer" and not backend.capturable
    steps = [Step(1, (4, 2, 64), [(5, 0), (1, 9)]), Step(2, (4, 2, 64), [(8, 3)])]
    for planned, step in enumerate(steps, start=1):
        for _layer in range(3):
            step.check(backend.attend(step.q, step.k, step.v, step.spans))
        assert sys.modules["flashinfer"].BatchPrefillWithRaggedKVCacheWrapper.plans == planned


@pytest.mark.usefixtures("flashinfer")
def test_the_order_where_flashinfer_is_installed() -> None:
    assert choose("auto2", 64, HALF, CPU).name == "flash-attn"
    assert choose("auto", 32, HALF, CPU).name == "flash-attn"
    with pytest.raises(ConfigError, match=r"head size of 64, 128 or 256; use --prefill-backend auto"):
        choose("flashinfer", 32, HALF, CPU)


@pytest.mark.skipif(find_spec("flashinfer") is not None, reason="FlashInfer is installed")
def test_flashinfer_is_missed_by_those_who_ask_for_it() -> None:
    assert choose("auto", 64, HALF, CPU).name == "flash-attn"
    with pytest.raises(ConfigError, match=r"pip install flashinfer-python; use --prefill-backend auto"):
        choose("flashinfer", 64, HALF, CPU)


@pytest.mark.parametrize("backend", ["auto", "auto2"])
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.float32), (20, HALF), (320, HALF)])
def test_operators_are_left_where_nothing_else_runs(backend, head_dim, dtype):
    assert choose(backend, head_dim, dtype, CPU).name == "sdpa"


def test_what_a_graph_can_hold() -> None:
    named: list[PrefillBackend] = ["flash-attn", "triton", "sdpa"]
    chosen = [choose(name, 64, torch.bfloat16, CPU) for name in named]
    assert [backend.name for backend in chosen] == named
    assert [backend.capturable for backend in chosen] == [True, True, False]


@pytest.mark.parametrize(
    ("backend", "head_dim", "dtype", "message"),
    [
        ("flash-attn", 64, torch.float32, "flash-attn needs fp16 or bf16"),
        ("flash-attn", 20, HALF, "a multiple of 8"),
        ("triton", 256, HALF, "a head size of at most 128"),
        ("flash-attn-3", 64, HALF, "pip install fa3-fwd"),
    ],
)
def test_what_cannot_run_is_refused(backend, head_dim, dtype, message):
    with pytest.raises(ConfigError, match=message):
        choose(backend, head_dim, dtype, CPU)
