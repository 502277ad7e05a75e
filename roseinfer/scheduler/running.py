"""The running requests as arrays, one row each, so that a step's host time hardly grows with their number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import UNKNOWN, Ints
from roseinfer.request.params import SAMPLING, SamplingRows
from roseinfer.scheduler.request import Request


class Running:
    """Rows `0 … capacity − 1`, each free or with one request (a running row).

    `order` lists the rows in use, the first admitted first; `prefilling` those of them whose prompt is not
    computed yet; `decoding` those that decode, in the order of their turns.

    A row's request has `length` tokens, prompt and generated. Tokens that a launched step samples count, and
    are UNKNOWN until the host reads them. `length` is at most `max_model_len` + 1, as no step computes the
    last token. The row's first `blocks` entries of `block_table` hold the keys and values; during prefill,
    those of the first `computed` tokens are there. Below a length of `least` no token may end the answer;
    from `first_stop` on an end-of-text token does; at `last_stop` it ends whatever the token.
    """

    def __init__(self, capacity: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.requests: list[Request | None] = [None] * capacity
        self.order = np.empty(0, dtype=np.int64)
        self.prefilling: list[int] = []
        self.decoding = np.empty(0, dtype=np.int64)
        self.alive = np.zeros(capacity, dtype=np.bool_)
        self.ids = np.zeros(capacity, dtype=np.int64)
        self.clients = np.zeros(capacity, dtype=np.int64)
        self.tokens = np.zeros((capacity, max_model_len + 1), dtype=np.int32)
        self.length = np.zeros(capacity, dtype=np.int64)
        self.computed = np.zeros(capacity, dtype=np.int64)
        self.reused = np.zeros(capacity, dtype=np.int64)  # of them, those that were there already
        self.first_stop = np.zeros(capacity, dtype=np.int64)  # length from which EOS ends the answer
        self.last_stop = np.zeros(capacity, dtype=np.int64)  # length at which the answer ends
        self.block_table = np.zeros((capacity, -(-max_model_len // block_size)), dtype=np.int64)
        self.blocks = np.zeros(capacity, dtype=np.int64)
        self.sampling: SamplingRows = np.zeros(capacity, dtype=SAMPLING)
        self.logprobs = np.zeros(capacity, dtype=np.int64)  # -1 where none are asked for
        self.adjusts = np.zeros(capacity, dtype=np.bool_)  # see SamplingParams
        self.least = np.zeros(capacity, dtype=np.int64)  # below this length no token may end the answer
        self.stop_tokens: dict[int, frozenset[int]] = {}  # of the rows that have any
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

    def add(self, request: Request, blocks: Ints, computed: int) -> int:
        """Put `request` in a free row with `blocks`, which have the keys and values of `computed` tokens.

        Returns the row.
        """
        row = self._free_rows.pop()
        params, count = request.params, len(request.tokens)
        self.requests[row] = request
        self._row_of[request.id] = row
        self.order = np.append(self.order, row)
        self.prefilling.append(row)
        self.alive[row] = True
        self.ids[row], self.clients[row] = request.id, request.client
        self.tokens[row, :count] = request.tokens
        self.length[row] = count
        self.computed[row] = self.reused[row] = computed
        never = self.tokens.shape[1] + 1
        self.first_stop[row] = never if params.ignore_eos else len(request.prompt) + max(params.min_tokens, 1)
        self.last_stop[row] = len(request.prompt) + params.max_tokens
        self.blocks[row] = len(blocks)
        self.block_table[row, : len(blocks)] = blocks
        self.sampling[row] = params.choice(request.choice).sampling_row
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.adjusts[row] = params.adjusts
        self.least[row] = len(request.prompt) + params.min_tokens if params.masks_ends else 0
        if params.stop_token_ids:
            self.stop_tokens[row] = frozenset(params.stop_token_ids)
        return row

    def longest(self) -> tuple[int, int]:
        """Return, for the longest prompt that is not computed yet, how many tokens were to be computed when
        it was admitted, and how many are left; zeros without any."""
        rows = [(int(self.length[row]), row) for row in self.prefilling]
        each = ((end - int(self.reused[row]), end - int(self.computed[row])) for end, row in rows)
        return max(each, default=(0, 0))

    def remove(self, rows: Ints) -> None:
        """Stop running `rows` `[n]`. They keep their blocks until `vacate`."""
        self.alive[rows] = False
        self.order = self.order[self.alive[self.order]]
        self.decoding = self.decoding[self.alive[self.decoding]]
        self.prefilling = [row for row in self.prefilling if self.alive[row]]
        for row in rows:
            del self._row_of[self.request(row).id]

    def vacate(self, row: int) -> Ints:
        """Free the row of a removed request. Returns its blocks `[n]`, which the caller releases."""
        self.requests[row] = None
        self.stop_tokens.pop(row, None)
        self._free_rows.append(row)
        return self.blocks_of(row).copy()

    def blocks_of(self, row: int) -> Ints:
        """The blocks `[n]` of `row`, in the order of its tokens."""
        return self.block_table[row, : self.blocks[row]]

    def num_cached(self, row: int) -> int:
        """Known tokens of `row` whose keys and values are cached, or will be by a launched step."""
        if row in self.prefilling:
            return int(self.computed[row])
        return min(len(self.known_tokens(row)), int(self.length[row]) - 1)

    def known_tokens(self, row: int) -> NDArray[np.int32]:
        """Prompt and generated tokens `[n]` of `row` that the host has read."""
        tokens: NDArray[np.int32] = self.tokens[row, : self.length[row]]
        tokens = tokens[tokens != UNKNOWN]
        return tokens
