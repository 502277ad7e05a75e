"""Why a cell is not to be believed."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: `unmeasured`: no request was sent in the part that is measured. `no_success`: none succeeded. `failures`:
#: some failed. `late`: the client or a node sent late. `busy`: a client process had too much to do.
#: `answers`: they are wrong. `accuracy`: the engine scores below another.
InvalidKind = Literal["unmeasured", "no_success", "failures", "late", "busy", "answers", "accuracy"]


class InvalidReason(NamedTuple):
    """`text` is one sentence with its figures; `clients` are the client processes that would do."""

    kind: InvalidKind
    text: str
    clients: int | None = None
