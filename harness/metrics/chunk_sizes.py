"""Whether text came in larger chunks than the engine makes: then the times between tokens look too good."""

from __future__ import annotations

import numpy as np

from harness.metrics.digits import digits
from harness.metrics.samples import Group
from harness.schema.cell_notice import CellNotice

#: A chunk is large from more than so many steps' tokens on. A server that waits for the rest of a character
#: or for a stop string, or whose front end is behind for a moment, sends two to four together.
LARGE_STEPS = 4


def large_chunks(group: Group, tokens_per_step: float = 1.0) -> CellNotice | None:
    """A notice if half of the tokens came in large chunks, or half of the answers began with one.

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
    most, found = LARGE_STEPS * tokens_per_step, []
    if usual > most:
        found.append(f"half of the tokens came in chunks of {usual} or more")
    if begin > most:
        found.append(f"half of the answers began with a chunk of {begin} or more")
    if not found:
        return None
    decoded = "does not report several tokens a step"
    if tokens_per_step > 1:
        decoded = f"reports {digits(tokens_per_step)} a step"
    icl = group.sample("icl_ms")
    seen = f"ICL p50 is {digits(icl.levels['p50'])} ms" if icl.n else "answers came whole"
    said = f"{' and '.join(found)}; the engine {decoded}"
    effect = "if text is held back, TTFT is too long, TPOT and ITL too short"
    return CellNotice(kind="chunks", text=f"{said}: {effect}; {seen}")
