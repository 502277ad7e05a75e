"""What a reader must know of a cell before believing its numbers."""

from __future__ import annotations

from typing import Literal

from harness.schema.base import Strict

#: `behind`: the engine did not keep up. `growing`: more and more requests were in flight. `drift`: latencies,
#: or the requests in flight, changed within the cell. `disturbed`: something else used the machine.
#: `throttled`: a GPU lowered its clocks. `repeats`: they disagree. `inferred`: tokens were not
#: counted one by one. `hidden`: reasoning was counted and not sent. `chunks`: text came in large chunks.
#: `short`: too few requests or seconds. `cached`: prompts may have been answered from a cache. `order`: a
#: lighter load was slower. `accuracy`: the engine scores below another. `unreported`: something that is
#: checked elsewhere could not be checked here. `late`: the client sent one request late, of too few to judge
#: it by.
NoticeKind = Literal[
    "behind",
    "growing",
    "drift",
    "disturbed",
    "throttled",
    "repeats",
    "inferred",
    "hidden",
    "chunks",
    "short",
    "cached",
    "order",
    "accuracy",
    "unreported",
    "late",
]


class CellNotice(Strict):
    """`text` is one sentence that says what was seen, with its figures."""

    kind: NoticeKind
    text: str
