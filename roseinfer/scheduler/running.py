"""The running requests as arrays, one row each: a step costs the same Python whatever their number."""

from __future__ import annotations

import numpy as np

from roseinfer.attention.base import Ints
from roseinfer.scheduler.request import Request


class Running:
    """Rows `0 … capacity − 1`; `order` lists the rows in use, the longest running first.

    A row's request knows `length` tokens (prompt and generated), of which the keys and values of the first
    `computed` are cached in its first `blocks` blocks. While it decodes, `computed == length − 1`.
    """

    def __init__(self, capacity: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.requests: list[Request | None] = [None] * capacity
        self.order = np.empty(0, dtype=np.int64)
        self.ids = np.zeros(capacity, dtype=np.int64)
        self.tokens = np.zeros((capacity, max_model_len), dtype=np.int32)
        self.length = np.zeros(capacity, dtype=np.int64)
        self.computed = np.zeros(capacity, dtype=np.int64)
        self.first_stop = np.zeros(capacity, dtype=np.int64)  # length from which EOS ends the answer
        self.last_stop = np.zeros(capacity, dtype=np.int64)  # length at which the answer ends
        self.block_table = np.zeros((capacity, -(-max_model_len // block_size)), dtype=np.int64)
        self.blocks = np.zeros(capacity, dtype=np.int64)
        self.temperature = np.zeros(capacity, dtype=np.float32)
        self.top_k = np.zeros(capacity, dtype=np.int64)
        self.top_p = np.zeros(capacity, dtype=np.float32)
        self.seed = np.zeros(capacity, dtype=np.uint64)
        self._free_rows = list(range(capacity - 1, -1, -1))
        self._row_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.order)

    @property
    def full(self) -> bool:
        return not self._free_rows

    def row_of(self, request_id: int) -> int | None:
        """The row of a running request."""
        return self._row_of.get(request_id)

    def request(self, row: int) -> Request:
        """The request in `row`."""
        request = self.requests[row]
        assert request is not None, f"row {row} is empty"
        return request

    def add(self, request: Request, blocks: Ints) -> int:
        """Put `request` in a free row with `blocks` to write its keys and values to. Returns the row."""
        row = self._free_rows.pop()
        params, known = request.params, len(request.tokens)
        self.requests[row] = request
        self._row_of[request.id] = row
        self.order = np.append(self.order, row)
        self.ids[row] = request.id
        self.tokens[row, :known] = request.tokens
        self.length[row] = known
        self.computed[row] = 0
        never = self.tokens.shape[1] + 1
        self.first_stop[row] = never if params.ignore_eos else len(request.prompt) + max(params.min_tokens, 1)
        self.last_stop[row] = len(request.prompt) + params.max_tokens
        self.blocks[row] = len(blocks)
        self.block_table[row, : len(blocks)] = blocks
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.seed[row] = params.seed
        return row

    def remove(self, row: int) -> tuple[Request, Ints]:
        """Empty `row`. Returns its request, and the blocks to release."""
        request, blocks = self.request(row), self.held_blocks(row).copy()
        self.requests[row] = None
        del self._row_of[request.id]
        self.order = self.order[self.order != row]
        self._free_rows.append(row)
        return request, blocks

    def held_blocks(self, row: int) -> Ints:
        """The blocks of `row`, in the order of its tokens."""
        return self.block_table[row, : self.blocks[row]]

    def known_tokens(self, row: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Prompt and generated tokens of `row`."""
        return self.tokens[row, : self.length[row]].copy()
