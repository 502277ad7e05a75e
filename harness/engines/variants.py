"""What an engine's file (`configs/engines/NAME.yaml`) holds: variants, and how its environments are made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, PositiveInt, ValidationError

from harness import paths
from harness.engines.recipe import Build, BundleRecipe, Recipe
from harness.errors import UsageError
from harness.plain_text import one_line
from harness.schema.base import Strict, first_fault
from harness.schema.yaml_file import read_yaml

CONFIGS = paths.DATA / "configs" / "engines"


class Variant(Strict):
    """Settings laid over an engine's defaults. The empty one is the engine as it is."""

    label: Annotated[str, AfterValidator(one_line)] = Field(
        "", description="what is in parentheses after the engine's name"
    )
    about: Annotated[str, AfterValidator(one_line)] = Field(
        "", description="one sentence: what it does, or why the engine needs it; shown in reports"
    )
    args: list[str] = Field(default_factory=list, description="appended to the server's command line")
    env: dict[str, str] = Field(default_factory=dict, description="environment of server and offline worker")
    body: dict[str, JsonValue] = Field(
        default_factory=dict, description="fields of every request, in place of those of the same name"
    )
    prefix_cache: bool | None = Field(None, description="overrides --prefix-cache for this variant")
    cpu_threads: PositiveInt | Literal["all"] | None = Field(
        None, description="overrides --cpu-threads for this variant; all: one on each physical core"
    )
    tensor_parallel_size: PositiveInt | None = Field(
        None, description="overrides --tensor-parallel-size for this variant"
    )
    data_parallel_size: PositiveInt | None = Field(
        None, description="overrides --data-parallel-size for this variant"
    )
    offline: dict[str, JsonValue] | None = Field(
        default_factory=dict,
        description="arguments of the engine's in-process API, without which a variant with args is not "
        "measured there; null: not a thing of offline runs",
    )


class EngineFile(Strict):
    """The whole of one `configs/engines/NAME.yaml`."""

    variants: dict[str, Variant] = Field(default_factory=dict)
    environments: dict[Build, Recipe] = Field(default_factory=dict)
    bundles: dict[str, BundleRecipe] = Field(
        default_factory=dict, description="by version of the engine; the first is the default"
    )


def load_file(path: Path) -> EngineFile:
    """An engine's file; an empty one where there is none.

    Raises:
        UsageError: the file is not YAML, or has a key that is not known.
    """
    if not path.exists():
        return EngineFile()
    try:
        return EngineFile.model_validate(read_yaml(path, "correct the file") or {})
    except ValidationError as error:
        known = ", ".join(Variant.model_fields)
        raise UsageError(f"{path}: {first_fault(error)}", f"a variant has the keys {known}") from None
