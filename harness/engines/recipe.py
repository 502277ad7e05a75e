"""How an engine's environment is made, as data: part of `configs/engines/NAME.yaml`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.schema.base import Strict

Build = Literal["cpu", "cuda"]


class Recipe(Strict):
    """A virtual environment. In requirements, `{version}` is the engine's version."""

    version: str = Field(description="installed by default")
    packages: list[str] = Field(description="requirements, installed with their dependencies")
    requirements: str | None = Field(None, description="a requirements file next to the YAML file")
    alone: list[str] = Field(
        default_factory=list, description="requirements installed afterwards, without their dependencies"
    )
    env: dict[str, str] = Field(default_factory=dict, description="set while packages are installed")
    remove: list[str] = Field(default_factory=list, description="distributions removed afterwards")
    shims: list[str] = Field(
        default_factory=list, description="files of harness/engines/adapters/shims copied into site-packages"
    )


class BundleRecipe(Strict):
    """An engine for a host that has Python and torch, and no package index."""

    python: str = Field(description="version of the host's CPython, e.g. 3.12")
    torch: str = Field(description="version of the host's torch, as a prefix, e.g. 2.11")
    wheels: str = Field(description="a file of pinned requirements next to the YAML file")
    drop: list[str] = Field(default_factory=list, description="globs of files and folders left out")
    gpu_arch: int | None = Field(None, description="the GPU whose code in `slim` is kept: 90 is sm_90")
    slim: list[str] = Field(
        default_factory=list, description="libraries whose code for other GPUs is left out"
    )
