"""Decoder models over flat batches of tokens."""

import torch

from roseinfer.models import config
from roseinfer.models.config import ModelConfig
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.weights import RandomWeights, Weights

__all__ = ["GPT2", "ModelConfig", "load"]


def load(model: str, device: torch.device, dtype: torch.dtype, *, packed: bool, seed: int) -> GPT2:
    """The model `model`: a folder in Hugging Face layout, a hub id, or `random:NAME`."""
    shape, folder = config.read(model)
    weights = RandomWeights(seed) if folder is None else Weights(folder)
    return GPT2(shape, weights, device, dtype, packed=packed)
