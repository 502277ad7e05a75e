"""Models as argparse takes them, with an error that says which there are."""

from __future__ import annotations

from argparse import ArgumentTypeError

from roseinfer.config import ConfigError
from roseinfer.model_folder import model_folder
from rosemodels import llama
from rosemodels.store import RANDOM


def llama_name(name: str) -> str:
    """The name of a Llama's shape, with or without `random:`."""
    if name.removeprefix(RANDOM) not in llama.SHAPES:
        names = ", ".join(RANDOM + name for name in llama.SHAPES)
        raise ArgumentTypeError(f"there is no Llama {name!r}; there are {names}")
    return name


def llama_shape(name: str) -> llama.Shape:
    """Return the shape that a `llama_name` names."""
    return llama.SHAPES[name.removeprefix(RANDOM)]


def model_name(name: str) -> str:
    """A named model, the folder of a local one, or one of the hub, which is fetched."""
    try:
        model_folder(name)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from None
    return name
