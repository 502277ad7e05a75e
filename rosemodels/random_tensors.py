"""Random tensors as safetensors files, drawn and written by all cores.

A tensor is drawn in pieces, each from a generator of its own, so that the bytes are the same however many
cores there are. The format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["float32", "bfloat16"]
_NAMES = {"float32": "F32", "bfloat16": "BF16"}
_BYTES = {"float32": 4, "bfloat16": 2}
#: Elements of a piece.
PIECE = 1 << 22


@dataclass(frozen=True)
class RandomTensor:
    """Normally distributed with standard deviation `std` around 0; ones where it is None."""

    name: str
    shape: tuple[int, ...]
    std: float | None

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)


def draw(tensor: RandomTensor, number: int, piece: int, size: int = PIECE) -> NDArray[np.float32]:
    """At most `size` elements, from `piece · size` on, of the tensor that is the `number`th of its model."""
    count = min(size, tensor.size - piece * size)
    if tensor.std is None:
        return np.ones(count, dtype=np.float32)
    generator = np.random.Generator(np.random.Philox(key=number << 64 | piece))
    drawn = generator.standard_normal(count, dtype=np.float32)
    drawn *= np.float32(tensor.std)
    return drawn


def write_tensors(
    folder: Path, tensors: list[RandomTensor], dtype: Dtype, largest: int = 5 * 10**9, piece: int = PIECE
) -> None:
    """Write `model.safetensors`, or several files and their index where one would have more than `largest`
    bytes, drawn in pieces of `piece` elements. A file of one tensor may be larger."""
    numbered = list(enumerate(tensors))
    shards = list(_shards(numbered, largest // _BYTES[dtype]))
    total = sum(tensor.size for tensor in tensors) * _BYTES[dtype]
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        shard_of_names = zip(names, shards, strict=True)
        index: dict[str, Any] = {
            "metadata": {"total_size": total},
            "weight_map": {tensor.name: name for name, shard in shard_of_names for _, tensor in shard},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, shard in zip(names, shards, strict=True):
            _write_shard(folder / name, shard, dtype, piece, pool)


def _shards(numbered: list[tuple[int, RandomTensor]], most: int) -> Iterator[list[tuple[int, RandomTensor]]]:
    shard: list[tuple[int, RandomTensor]] = []
    for number, tensor in numbered:
        if shard and sum(shard_of_names.size for _, shard_of_names in shard) + tensor.size > most:
            yield shard
            shard = []
        shard.append((number, tensor))
    yield shard


def _write_shard(
    path: Path, shard: list[tuple[int, RandomTensor]], dtype: Dtype, size: int, pool: ThreadPoolExecutor
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts, end, width = [], 0, _BYTES[dtype]
    for _, tensor in shard:
        starts.append(end)
        end += tensor.size * width
        header[tensor.name] = {
            "dtype": _NAMES[dtype], "shape": tensor.shape, "data_offsets": [starts[-1], end]
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        first = file.tell()
        file.truncate(first + end)

        def write(number: int, tensor: RandomTensor, start: int, piece: int) -> None:
            drawn: NDArray[Any] = draw(tensor, number, piece, size)
            if dtype == "bfloat16":
                drawn = to_bfloat16(drawn)
            remaining, place = drawn.data.cast("B"), first + start + piece * size * width
            while remaining:  # a disk that is nearly full takes a part
                count = os.pwrite(file.fileno(), remaining, place)
                remaining, place = remaining[count:], place + count

        writes = [
            pool.submit(write, number, tensor, start, piece)
            for (number, tensor), start in zip(shard, starts, strict=True)
            for piece in range(-(-tensor.size // size))
        ]
        for pending in writes:
            pending.result()


def to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, to even where two are as near; `x` is finite, and is used up."""
    bits = x.view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    bits += odd
    bits >>= 16
    return bits.astype(np.uint16)
