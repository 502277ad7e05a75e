"""The folders of named models: made once, whole, when first asked for."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock

from rosemodels import gpt2, llama, smollm2
from rosemodels.cache import cache_folder
from rosemodels.errors import ModelError

__all__ = ["ModelError", "folder", "names"]

RANDOM = "random:"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """`write` fills an empty folder; `key` names it in the cache, and changes with what is written."""

    key: str
    write: Callable[[Path], None]


RECIPES = {
    **{
        RANDOM + name: Recipe(f"random-{name}-1", partial(gpt2.write, shape=s))
        for name, s in gpt2.SHAPES.items()
    },
    **{
        RANDOM + name: Recipe(f"random-{name}-2", partial(llama.write, shape=s))
        for name, s in llama.SHAPES.items()
    },
    smollm2.NAME: Recipe(f"{smollm2.NAME}-1", smollm2.write),
}


def names() -> list[str]:
    """Every named model."""
    return list(RECIPES)


def folder(model: str, cache: Path | None = None, recipes: Mapping[str, Recipe] = RECIPES) -> Path | None:
    """The folder of a named model, made in `cache`, or in `models` of the usual one, if it is not there; None
    if `model` is not of that kind.

    Raises ModelError when there is no such random model or the folder cannot be made.
    """
    recipe = recipes.get(model)
    if recipe is None:
        if model.startswith(RANDOM):
            raise ModelError(f"there is no model {model!r}", f"there are {', '.join(recipes)}")
        return None
    cache = cache or cache_folder() / "models"
    path = cache / recipe.key
    if not path.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            # Of processes that want the same folder one makes it, the others wait.
            with FileLock(cache / f".{recipe.key}.lock"):
                if not path.is_dir():
                    _make(path, recipe.write)
        except OSError as error:
            raise ModelError(
                f"could not make {path}: {error}", "check that there is room and who may write"
            ) from None
    return path


def _make(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside `path`, sync and rename. The caller has the lock, so what other processes have left there
    is of no use: they were killed."""
    log.info("making %s", path)
    for unfinished in path.parent.glob(f".{path.name}-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as beside:
        scratch = Path(beside) / path.name
        scratch.mkdir()
        write(scratch)
        for file in scratch.iterdir():
            file.chmod(0o644)
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        scratch.rename(path)
