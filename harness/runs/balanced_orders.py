"""Orders in which the engines of a run take turns."""

from __future__ import annotations

import numpy as np


def balanced_orders(engines: int, repeats: int, seed: int) -> list[list[int]]:
    """For each repeat the engines in the order in which they are measured.

    The rows of Williams designs (E. J. Williams, Australian Journal of Scientific Research A 2, 1949): over a
    whole design each engine is at each place equally often, and after each other engine equally often. It
    has as many rows as engines, twice as many where their number is odd; engines and rows are drawn from the
    seed, anew for each design. A row is followed by its reverse, so after every second repeat each engine has
    been before and after each other one equally often, and a steady drift of the machine meets all alike.

    Returns:
        `repeats` permutations of range(engines).
    """
    rng = np.random.default_rng(seed)
    zigzag = np.array([(place + 1) // 2 * (1 if place % 2 else -1) for place in range(engines)])
    orders: list[list[int]] = []
    while len(orders) < repeats:
        names = rng.permutation(engines)
        # With an even number the reverse of a row is another row of the same square.
        for shift in rng.permutation(engines if engines % 2 else engines // 2):
            row = names[(zigzag + shift) % engines].tolist()
            pair = [row, row[::-1]]
            orders += pair if rng.integers(2) else pair[::-1]
    return orders[:repeats]
