"""Kernels in CUDA C++ without a GPU: their texts, launches, and the GPUs that they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from roseinfer.attention import prefill_backends
from roseinfer.kernels.capability import is_hopper, is_large_hopper, shared_memory
from roseinfer.kernels.cuda import build, paged_decode
from roseinfer.kernels.cuda.build import with_includes


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("few_rows.cu", "struct Softmax {"),
        ("paged_decode.cu", "struct Softmax {"),
        ("gqa_decode.cu", "struct Softmax {"),
        ("stream.cu", "barrier_t;"),
        ("draw.cu", "struct How {"),
    ],
)
def test_every_file_is_there_once(name: str, part: str) -> None:
    text = with_includes(name)
    assert '#include "' not in text
    assert text.count(part) == text.count("typedef unsigned short half_t;") == 1
    assert text.index("half_t;") < text.index(part) < text.index('extern "C"')


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


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU of a compute capability, with so many bytes of shared memory for a block. Its number is unique:
    facts about a GPU are kept."""
    capability, size = request.param
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    properties = SimpleNamespace(shared_memory_per_block_optin=size)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return torch.device("cuda", 40 + capability[0])


H100, B200, RTX_5090, A100 = ((9, 0), 232_448), ((10, 0), 232_448), ((12, 0), 101_376), ((8, 0), 166_912)


@pytest.mark.parametrize(
    ("gpu", "early", "large"),
    [(H100, True, True), (B200, True, True), (RTX_5090, True, False), (A100, False, False)],
    indirect=["gpu"],
)
def test_ring_buffers_need_the_shared_memory_of_an_h100(gpu: torch.device, early: bool, large: bool) -> None:
    assert (is_hopper(gpu), is_large_hopper(gpu)) == (early, large)
    assert shared_memory(gpu) >= 101_376


@pytest.mark.parametrize(("gpu", "runs"), [(H100, True), (B200, False), (A100, False)], indirect=["gpu"])
def test_flash_attention_3_is_for_compute_capability_9(gpu, runs, monkeypatch):
    monkeypatch.setattr(prefill_backends, "find_spec", lambda name: True)
    monkeypatch.setattr(prefill_backends, "flash3_loads", lambda: True)
    monkeypatch.setattr(prefill_backends, "FlashAttention3", object)
    backend = prefill_backends.choose(None, 128, torch.bfloat16, gpu)
    assert backend.name == ("flash-attn-3" if runs else "triton")


def test_binaries_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the same source and GPU. What cannot be loaded is compiled again, as is all without a folder."""
    compiled: list[str] = []

    def compile_now(source: str, name: str, *, nvcc_options: list[str]) -> tuple[bytes, str]:
        compiled.append(source)
        return b"binary of " + source.encode(), name

    def load(binary: bytes, names: list[str]) -> dict[str, SimpleNamespace]:
        if not binary.startswith(b"binary of "):
            raise RuntimeError("CUDA error: device kernel image is invalid")
        return {name: SimpleNamespace(func=binary) for name in names}

    def loaded(source: str) -> int:
        """Return how often it has been compiled."""
        assert build._loaded(source, "f").func == b"binary of " + source.encode()
        return compiled.count(source)

    monkeypatch.setattr(torch.cuda._utils, "_nvrtc_compile", compile_now)
    monkeypatch.setattr(torch.cuda._utils, "_cuda_load_module", load)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setenv("ROSEINFER_CACHE", str(tmp_path / "cache"))
    assert [loaded("a"), loaded("b"), loaded("a"), loaded("b")] == [1, 1, 1, 1]
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(b"")
    assert [loaded("a"), loaded("a")] == [2, 2]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    assert loaded("a") == 3
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROSEINFER_CACHE", str(tmp_path / "file" / "below"))
    assert [loaded("a"), loaded("a")] == [4, 5]
