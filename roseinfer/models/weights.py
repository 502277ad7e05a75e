"""Weights by their Hugging Face names, from safetensors files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors import SafetensorError, safe_open

from roseinfer.config import ConfigError
from roseinfer.models.config import ModelConfig
from roseinfer.models.shard import Shard
from roseinfer.tensors import Uploads

#: What numbers may be stored as. Others are quantized, and mean nothing without their scales.
_DTYPES = ("F64", "F32", "F16", "BF16")
#: What the names of a model with an LM head begin with; a checkpoint of the base class has them without. One
#: of a model that also has images has `model.language_model.`.
_PREFIXES = ("model.", "transformer.")
HEAD = "lm_head.weight"
#: Elements of a tensor from which on it pays to copy it to a GPU through pinned memory.
_LARGE = 1 << 19
_CPU = torch.device("cpu")


class Weights:
    """Tensors of a safetensors folder, read when asked for, on the CPU; large ones on `device`.

    `tied`: the name of the embedding table where it is the LM head's weight too; either may be stored.
    """

    def __init__(self, folder: Path, *, tied: str | None = None, device: torch.device = _CPU) -> None:
        self._tied = tied
        self._device = device
        self._opened: dict[Path, Any] = {}
        self._file_of = dict(self._index(folder))
        if not self._file_of:
            raise ConfigError(f"{folder} has no .safetensors file")

    def _index(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """Tensors' names and files: of `model.safetensors`, as in transformers, else of the files that an
        index names, else of all."""
        single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if index.is_file() and not single.is_file():
            try:
                files = dict(json.loads(index.read_text())["weight_map"])
                if others := [file for file in files.values() if not isinstance(file, str)]:
                    raise TypeError(f"{others[0]!r} is no file's name")
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{index} is not an index of safetensors files: {error}") from error
            yield from ((name, folder / file) for name, file in files.items())
            return
        for file in [single] if single.is_file() else sorted(folder.glob("*.safetensors")):
            with self._open(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    yield name, file

    def __contains__(self, name: str) -> bool:
        """Return whether the checkpoint has the tensor `name`."""
        return any(each in self._file_of for each in self._names(name))

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor `name`. Raises ConfigError when it is missing, of another shape, or quantized."""
        with self._stored(name, shape) as (tensors, stored_name):
            tensor: torch.Tensor = tensors.get_tensor(stored_name)
        return self._uploaded(tensor)

    def _uploaded(self, tensor: torch.Tensor) -> torch.Tensor:
        large = self._device.type == "cuda" and tensor.numel() >= _LARGE
        return self._upload(tensor) if large else tensor

    @cached_property
    def _upload(self) -> Uploads:
        return Uploads(self._device)

    def has_other_head(self, config: ModelConfig) -> bool:
        """Return whether an LM head is stored that differs from the embedding table. Raises ConfigError as
        `get`."""
        if HEAD not in self._file_of:
            return False
        shape = config.vocab_size, config.width
        table = self.get(config.table, shape)
        return not torch.equal(table, self.get(HEAD, shape).to(table.dtype))

    def _names(self, name: str) -> list[str]:
        """Names that a checkpoint may have for the tensor `name`."""
        names = [name, *(name.removeprefix(prefix) for prefix in _PREFIXES)]
        names.append(re.sub(r"^model\.", "model.language_model.", name))
        return [*names, HEAD] if name == self._tied else names

    def _stored_name(self, name: str) -> str:
        """The checkpoint's name of the tensor `name`."""
        for each in self._names(name):
            if each in self._file_of:
                return each
        raise ConfigError(f"the checkpoint has no tensor {name}")

    @contextmanager
    def _open(self, file: Path) -> Iterator[Any]:
        """The open `file`. It stays open: a header lists thousands of tensors."""
        try:
            if file not in self._opened:
                self._opened[file] = safe_open(file, framework="pt")
            yield self._opened[file]
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error

    @contextmanager
    def _stored(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[Any, str]]:
        """The open file that has the tensor `name`, of this shape, and its name there."""
        stored_name = self._stored_name(name)
        with self._open(self._file_of[stored_name]) as tensors:
            stored = tensors.get_slice(stored_name)
            stored_shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
            if stored_shape != shape:
                raise ConfigError(f"{name} has shape {stored_shape}, the config says {shape}")
            if dtype not in _DTYPES:
                raise ConfigError(f"{name} is quantized ({dtype}); give the model in bf16, fp16 or fp32")
            yield tensors, stored_name


class ShardWeights(Weights):
    """A rank's shard of each tensor of the model `whole`; nothing else is read."""

    def __init__(self, folder: Path, shard: Shard, whole: ModelConfig, device: torch.device = _CPU) -> None:
        super().__init__(folder, tied=whole.tied_table, device=device)
        self._shard, self._whole = shard, whole

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The rank's shard of `name`; zeros for a bias that another rank adds. `shape` is the shard's, except
        along the vocabulary, where it is whole."""
        cut = self._shard.cut(name, self._whole)
        if cut is None:
            whole = super().get(name, shape)
            return torch.zeros_like(whole) if self._shard.silent(name) else whole
        whole_shape = (*shape[: cut.dim], cut.size, *shape[cut.dim + 1 :])
        with self._stored(name, whole_shape) as (tensors, stored_name):
            stored = tensors.get_slice(stored_name)
            before = (slice(None),) * cut.dim
            parts = [stored[(*before, slice(start, end))] for start, end in cut.ranges]
        return self._uploaded(torch.cat(parts, cut.dim))


class DrawnWeights(Weights):
    """Random weights, drawn on `device`, of a model whose folder has none: matrices with standard deviation
    `std`, the embeddings with that of `tokens`, and gains of 1. A tensor is the same every time there."""

    def __init__(self, table: str, stds: Mapping[str, float], device: torch.device) -> None:
        self._table, self._stds, self._device = table, stds, device

    @classmethod
    def of(cls, folder: Path, shape: ModelConfig, device: torch.device) -> DrawnWeights | None:
        """Weights that config.json calls random; None where it does not, or the folder has some."""
        stds = json.loads((folder / "config.json").read_text()).get("random_weights")
        return cls(shape.table, stds, device) if stds and not any(folder.glob("*.safetensors")) else None

    def __contains__(self, name: str) -> bool:
        return not re.search(r"\.experts\.\d+\.", name)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Draw the tensor `name`."""
        if len(shape) == 1:
            return torch.ones(shape, device=self._device)
        generator = torch.Generator(self._device).manual_seed(crc32(name.encode()))
        std = self._stds["token_std" if name == self._table else "matrix_std"]
        return torch.randn(shape, generator=generator, device=self._device).mul_(std)

    def has_other_head(self, config: ModelConfig) -> bool:
        return False
