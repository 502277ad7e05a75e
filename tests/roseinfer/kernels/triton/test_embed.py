"""Embeddings of the last tokens of running rows."""

from __future__ import annotations

import torch

from roseinfer.kernels.triton import embed
from tests.roseinfer.kernels.triton.conftest import DEVICE, close, draw


def test_embedding_of_last_tokens() -> None:
    tokens, positions = draw(1, 50, 96), draw(2, 40, 96)
    last = torch.tensor([7, 49, 0, 3], device=DEVICE)
    rows, lengths = torch.tensor([[2, 0, 3], [1, 40, 0]], dtype=torch.int32, device=DEVICE)
    embedded = embed.embed_last(last, rows, lengths, tokens, positions)
    close(embedded, tokens[last[rows.long()]] + positions[[0, 39, 0]])


def test_embedding_of_rows() -> None:
    tokens, last = draw(1, 50, 1500), torch.tensor([7, 49, 0, 3], device=DEVICE)
    rows = torch.tensor([2, 0, 3], dtype=torch.int32, device=DEVICE)
    assert torch.equal(embed.embed_rows(last, rows, tokens), tokens[[0, 7, 3]])
