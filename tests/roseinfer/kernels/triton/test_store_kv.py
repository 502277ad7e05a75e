"""Keys and values on their way to the cache."""

from __future__ import annotations

import torch

from roseinfer.e4m3 import E4M3, to_e4m3
from roseinfer.kernels.triton import store_kv
from tests.roseinfer.kernels.triton.conftest import DEVICE, draw, storable


def test_keys_and_values_are_stored_where_they_belong() -> None:
    k, v = draw(1, 3, 2, 24), draw(2, 3, 2, 24)
    keys, values = torch.zeros(2, 10, 2, 24, device=DEVICE)
    store_kv.store_kv(k, v, keys, values, torch.tensor([4, -1, 9], dtype=torch.int32, device=DEVICE))
    expected = torch.zeros(2, 10, 2, 24, device=DEVICE)
    expected[0, [4, 9]], expected[1, [4, 9]] = k[[0, 2]], v[[0, 2]]
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
    assert (k[1] == 0).all() and (v[1] == 0).all()


def test_what_is_stored_in_8_bit_floats_is_given_back() -> None:
    k, v = storable(draw(1, 3, 2, 24) * 100), storable(draw(2, 3, 2, 24) / 100)
    k[0, 0, 0], v[2, 1, 3] = 1e4, -500
    expected = [torch.zeros(10, 2, 24, dtype=torch.uint8, device=DEVICE) for _ in "kv"]
    for cached, x in zip(expected, (k, v), strict=True):
        cached[[4, 9]] = to_e4m3(x)[[0, 2]].view(torch.uint8)
    keys, values = (torch.zeros(10, 2, 24, device=DEVICE).to(E4M3) for _ in "kv")
    store_kv.store_kv(k, v, keys, values, torch.tensor([4, -1, 9], dtype=torch.int32, device=DEVICE))
    assert torch.equal(keys.view(torch.uint8), expected[0]) and torch.equal(
        values.view(torch.uint8), expected[1]
    )
    assert torch.equal(k[[0, 2]], keys.float()[[4, 9]]) and torch.equal(v[[0, 2]], values.float()[[4, 9]])
    assert (k[1] == 0).all() and (v[1] == 0).all()
