"""Whether text came in larger chunks than the engine makes: then the times between tokens look too good."""

from __future__ import annotations

import numpy as np

from harness.metrics.samples import Group
from harness.schema.facts import Fact, Value

#: A chunk is large from more than so many steps' tokens on. A server that waits for the rest of a character
#: or for a stop string, or whose front end is behind for a moment, sends two to four together.
LARGE_STEPS = 4


def large_chunks(group: Group, tokens_per_step: float = 1.0) -> Fact | None:
    """State that half of the tokens came in large chunks, or half of the answers began with one.

    Args:
        tokens_per_step: What the engine reports that it decodes in one step of a request.
    """
    first = group.first_chunks
    if not first.size:
        return None
    sizes, counts = np.unique(np.concatenate([first, group.gaps.tokens]), return_counts=True)
    so_far = np.cumsum(sizes * counts)
    usual = int(sizes[np.searchsorted(so_far, so_far[-1] / 2)])  # half of the tokens came in such or larger
    begin = int(np.median(first))
    most = LARGE_STEPS * tokens_per_step
    values: dict[str, Value] = {}
    if usual > most:
        values["usual"] = usual
    if begin > most:
        values["first"] = begin
    if not values:
        return None
    values["tokens_per_step"] = tokens_per_step
    icl = group.sample("icl_ms")
    if icl.n:
        values["icl_ms"] = icl.levels["p50"]
    return Fact(kind="large_chunks", values=values)
