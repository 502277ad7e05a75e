"""Continuous batching (Yu et al., OSDI 2022): which tokens the next step computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import NO_COPIES, NO_INTS, UNKNOWN, Batch, Ints
from roseinfer.kvcache.blocks import BlockAllocator
from roseinfer.kvcache.prefix import PrefixCache, Reuse
from roseinfer.request.logprobs import StepLogprobs
from roseinfer.request.params import Finished, FinishReason
from roseinfer.scheduler.assemble import assemble
from roseinfer.scheduler.cost import StepCosts
from roseinfer.scheduler.policies import Chunk, ChunkedPrompts, Chunking, Policies, StepParts, WholePrompts
from roseinfer.scheduler.request import Request
from roseinfer.scheduler.running import Running
from roseinfer.scheduler.speculation import Speculation
from roseinfer.scheduler.waiting import Waiting

#: Rows that decode on a CPU in the time of one prompt's first token, if the rest is in the prefix cache.
_ROWS_OF_A_PROMPT = 8


@dataclass(frozen=True)
class StepResult:
    """The tokens of a step: request ids and tokens `[n]`.

    `finished`: the requests that ended. `logprobs`: of the requests that asked for them. `begun`: requests
    with stop strings that got their first token. They have not ended, but the front end may end them at any
    token, with the times that these entries have so far. `prompt_logprobs`: of prompts computed in this step
    that asked for them. `rows` `[n]`: where drafts were verified, of each token its place in the batch's
    `requests`; a request's tokens then follow each other."""

    ids: Ints
    tokens: Ints
    finished: tuple[Finished, ...]
    logprobs: StepLogprobs | None = None
    begun: tuple[Finished, ...] = ()
    prompt_logprobs: StepLogprobs | None = None
    rows: Ints | None = None


class _MustWaitError(Exception):
    """Too few free blocks, and a launched step must be processed before a request can be preempted."""


class Scheduler:
    """Requests wait, run together, and leave when done.

    A step is `prepare`, launch (by the caller), `launched`, `process`. The next step may be prepared before
    `process`: its input tokens are then UNKNOWN to the host. A request that ends in the meantime gives its
    row and blocks back only when the last step launched with it has been processed.

    A request needs blocks only for the tokens it has. When no block is left, a request is preempted: the one
    admitted last, of the client with the most running requests, goes back to the head of its queue and is
    recomputed later. The same happens where a client with nothing running would wait for clients that have
    more than their fair share.
    """

    def __init__(
        self,
        running: Running,
        allocator: BlockAllocator,
        prefixes: PrefixCache,
        policies: Policies,
        eos: tuple[int, ...],
        clock: Callable[[], float] = time.monotonic,
        speculation: Speculation | None = None,
    ) -> None:
        self._waiting = Waiting()
        self._running = running
        self._allocator = allocator
        self._prefixes = prefixes
        self._policies = policies
        self.eos = eos
        self._clock = clock
        self.speculation = speculation
        self._settled: dict[int, int] = {}  # newest tokens of rows that the runner does not have
        self._launched = self._processed = 0  # steps
        self._leaving: deque[tuple[int, int]] = deque()  # (step that frees it, row)
        self._changed: list[Ints] = []  # of the batch being prepared
        self._copies: list[Ints] = []
        self.preemptions = 0

    @property
    def costs(self) -> StepCosts | None:
        """The learned cost of steps, where they are composed by it."""
        return self._policies.costs

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return len(self._waiting) > 0 or len(self._running) > 0 or self._launched > self._processed

    def add(self, request: Request) -> None:
        """Queue a request, whose prompt and answer must fit the KV cache: see Limits."""
        self._waiting.add(request)

    def discard(self, request_id: int) -> bool:
        """Drop a request whose client went away, in any state. False if it is not known."""
        row = self._running.row_of(request_id)
        if row is None:
            return self._waiting.discard(request_id)
        self._leave(np.array([row]))
        return True

    def prepare(self) -> Batch | None:
        """The next step's batch; None when there is nothing to do, or a launched step must be processed
        first."""
        self._changed, self._copies = [], [NO_COPIES]
        if self._waiting.num_clients > 1 and (victim := self._victim_of_starving()) is not None:
            if self._launched > self._processed:
                return None
            self._preempt(victim)
        running = self._running
        parts = StepParts(self._prompts, self._decode, 0, len(running.decoding))
        if waiting := len(self._waiting) + len(running.prefilling):
            rest = sum(int(running.length[row] - running.computed[row]) for row in running.prefilling)
            context = int(running.length[running.decoding].sum())
            tokens = self._waiting.tokens + rest
            parts = replace(
                parts, waiting=waiting, tokens=tokens, longest=running.longest(), context=context,
                waited=self._waited,
            )  # fmt: skip
        try:
            chunks, decode = self._policies.composition(parts)
        except _MustWaitError:
            return None
        if not chunks and not len(decode):
            return None
        if chunks:
            self._changed.append(np.array([chunk.row for chunk in chunks]))
        copies = np.concatenate(self._copies, axis=1) if chunks else NO_COPIES
        drafts = [] if chunks else self._drafts(decode)
        changed = np.concatenate(self._changed) if self._changed else NO_INTS
        if drafts:
            return assemble(running, drafts, NO_INTS, changed, copies, NO_COPIES, verifies=True)
        settled = NO_COPIES
        if self._settled:
            settled = np.array([[*self._settled], [*self._settled.values()]])
            self._settled.clear()
        return assemble(running, chunks, decode, changed, copies, settled)

    @property
    def awaits_tokens(self) -> bool:
        """True if the next step had better be prepared when the launched one has been processed: tokens are
        likely to be drafted then."""
        running = self._running
        if self.speculation is None or running.prefilling or (len(self._waiting) and not running.full):
            return False
        return self.speculation.likely(running, running.decoding[: self._policies.max_batch_size])

    def _drafts(self, rows: Ints) -> list[Chunk]:
        """The newest token of each of `rows` `[D]`, and those drafted after it, for which there are blocks;
        empty where none are drafted."""
        running, chunks = self._running, list[Chunk]()
        if self.speculation is None or self._launched > self._processed:
            return chunks
        plan = self.speculation.plan(running, rows)
        most = [self._room(*each, len(rows)) for each in zip(rows.tolist(), plan, strict=False)]
        for row, draft in zip(rows.tolist(), self.speculation.draft(running, rows, most), strict=False):
            length = int(running.length[row])
            running.tokens[row, length : length + len(draft)] = draft
            chunks.append(Chunk(row, length - 1, 1 + len(draft), last=True))
        return chunks if any(chunk.count > 1 for chunk in chunks) else []

    def _room(self, row: int, most: int, spare: int) -> int:
        """Return for how many drafted tokens of `row`, at most `most`, there are blocks; it gets the blocks
        that it needs, if `spare` stay free."""
        running = self._running
        length, blocks = int(running.length[row]), int(running.blocks[row])
        more = -(-(length + most) // running.block_size) - blocks
        if 0 < more <= self._allocator.num_free - spare:
            running.block_table[row, blocks : blocks + more] = self._allocator.allocate(more)
            running.blocks[row] += more
            self._changed.append(np.array([row]))
        return min(most, int(running.blocks[row]) * running.block_size - length)

    def _waited(self) -> float:
        """The longest that a request has waited for its first token, in seconds."""
        waiting = [
            *(self._running.request(row) for row in self._running.prefilling),
            *islice(self._waiting, 1),
        ]
        return max((self._clock() - request.submitted for request in waiting), default=0.0)

    def launched(self, batch: Batch) -> None:
        """Record that the batch was launched: each of its requests has one more token, still UNKNOWN. One
        that verifies may have more, which `process` finds."""
        self._launched += 1
        running, rows = self._running, batch.requests
        for segment in batch.segments if not batch.verifying else ():
            running.computed[segment.request] = segment.context + segment.count
            self._share_prefix(segment.request)
        length = running.length[rows]
        running.tokens[rows, length] = UNKNOWN
        length += 1
        running.length[rows] = length
        prefilled, decoded = batch.prefill_requests, batch.decode_requests
        if batch.verifying:
            prefilled, decoded = NO_INTS, np.array([segment.request for segment in batch.segments])
        if len(prefilled):
            completed = set(prefilled.tolist())
            running.prefilling = [row for row in running.prefilling if row not in completed]
        others = running.decoding[len(decoded) :]
        if len(prefilled) or len(others) or (length >= running.last_stop[rows]).any():
            turns = np.concatenate([others, decoded, prefilled])
            running.decoding = turns[running.length[turns] < running.last_stop[turns]]

    def process(self, batch: Batch, tokens: Ints) -> StepResult:
        """Take the step's sampled tokens `[R]`, and end the requests that are done. Of those that verify, the
        tokens count up to the first that is not the drafted one, or is the last of the answer."""
        self._processed += 1
        now = self._clock()
        running, rows = self._running, batch.requests
        begun: list[Finished] = []
        for row in batch.prefill_requests.tolist() if not batch.verifying else ():
            request = running.request(row)
            if not request.first_token:
                request.first_token = now
                if request.params.stops:
                    begun.append(self._finished(row, FinishReason.STOP, now))
        length = batch.positions[batch.last_rows] + 2  # with the sampled token
        stopped = self._is_eos(tokens)
        if stopped.any():
            stopped &= length >= running.first_stop[rows]
        if running.stop_tokens:
            stopped |= self._at_stop_tokens(rows, tokens, length)
        kept = self._accept(batch, tokens, stopped) if batch.verifying else None
        if self._leaving:  # drop the tokens of requests that left after the launch
            kept = np.arange(len(rows)) if kept is None else kept
            kept = kept[running.alive[rows[kept]]]
        if kept is not None:
            rows, tokens, length, stopped = rows[kept], tokens[kept], length[kept], stopped[kept]
        running.tokens[rows, length - 1] = tokens
        ids = running.ids[rows]
        ended = stopped | (length >= running.last_stop[rows])
        finished: tuple[Finished, ...] = ()
        if ended.any():
            finished = tuple(
                self._finished(row, FinishReason.STOP if stop else FinishReason.LENGTH, now)
                for row, stop in zip(rows[ended], stopped[ended], strict=True)
            )
            self._leave(rows[ended])
        self._vacate()
        return StepResult(ids, tokens, finished, begun=tuple(begun), rows=kept if batch.verifying else None)

    def _accept(self, batch: Batch, tokens: Ints, stopped: NDArray[np.bool_]) -> Ints:
        """Return which of the sampled tokens `[R]` count where drafts are verified. `stopped` `[R]`: those
        that end their answer."""
        assert self.speculation is not None
        running, kept = self._running, list[Ints]()
        for segment in batch.segments:
            row, start = segment.request, segment.start
            drafted = slice(start, start + segment.count - 1)
            agree = (tokens[drafted] == batch.tokens[start + 1 : start + segment.count]) & ~stopped[drafted]
            accepted = int(np.append(agree, False).argmin())
            self.speculation.verified(running.request(row), len(agree), accepted)
            running.length[row] += accepted
            self._settled[row] = int(tokens[start + accepted])
            kept.append(np.arange(start, start + accepted + 1))
        return np.concatenate(kept)

    def _is_eos(self, tokens: Ints) -> NDArray[np.bool_]:
        is_eos = np.zeros(len(tokens), dtype=np.bool_)
        for eos in self.eos:
            is_eos |= tokens == eos
        return is_eos

    def _at_stop_tokens(self, rows: Ints, tokens: Ints, length: Ints) -> NDArray[np.bool_]:
        """Return a mask of `rows` that got one of their stop tokens, and have at least `min_tokens`
        tokens."""
        stops, request = self._running.stop_tokens, self._running.request
        return np.array(
            [
                token in stops.get(row, ())
                and count >= len(request(row).prompt) + request(row).params.min_tokens
                for row, token, count in zip(rows.tolist(), tokens.tolist(), length.tolist(), strict=True)
            ],
            dtype=np.bool_,
        )

    def _finished(self, row: int, reason: FinishReason, now: float) -> Finished:
        request = self._running.request(row)
        return Finished(
            id=request.id,
            reason=reason,
            queue_wait=request.admitted - request.submitted,
            prefill=request.first_token - request.admitted,
            generation=now - request.first_token,
            cached_tokens=request.cached_tokens,
        )

    def _decode(self) -> Ints:
        """Rows that decode, each with a block for its next token; preempts requests where blocks run out."""
        running = self._running
        while True:
            rows = self._turns()
            short = rows[running.blocks[rows] * running.block_size < running.length[rows]]
            if len(short) <= self._allocator.num_free:
                break
            if self._launched > self._processed:
                raise _MustWaitError
            self._preempt(self._victim())
        if len(short):
            running.block_table[short, running.blocks[short]] = self._allocator.allocate(len(short))
            running.blocks[short] += 1
            self._changed.append(short)
        return rows

    def _turns(self) -> Ints:
        """Rows that decode in the next step. Beside a client that has fewer running, those of one that has
        more than decode in a step take turns: who had one goes to the end."""
        running, clients = self._running, self._waiting.running
        most, of_client = self._policies.max_batch_size, self._limit_of_clients()
        rows = running.decoding
        if of_client is not None:
            client, waits = running.clients[rows], np.zeros(len(rows), bool)
            for crowded in (each for each, count in clients.items() if count > of_client):
                waits[np.flatnonzero(client == crowded)[of_client:]] = True
            running.decoding = rows = np.concatenate([rows[~waits], rows[waits]])
            most = min(most, int((~waits).sum()))
        return rows if len(rows) <= most else rows[:most]

    def _limit_of_clients(self) -> int | None:
        """Most requests of one client that decode in the next step; None where there is no such limit."""
        limit = self._policies.client_batch_size
        return limit if limit is not None and self._waiting.is_uneven(limit) else None

    def _victim_of_starving(self) -> int | None:
        """The row to preempt where the next request's client has nothing running, and the request waits
        because other clients hold all rows, or the blocks it needs, which are no more than an equal share of
        all. None where it need not, or where the preempted request would be the next again."""
        running, clients = self._running, self._waiting.running
        request = next(iter(self._waiting), None)
        if request is None or request.client in clients or max(clients.values(), default=0) < 2:
            return None
        blocks = -(-len(request.tokens) // running.block_size) + 1
        part = self._allocator.num_blocks // self._waiting.num_clients
        if not (running.full or self._allocator.num_free < blocks <= part):
            return None
        row = self._victim()
        victim, generated = running.request(row), self._generated(row)
        return row if self._waiting.precedes(request.client, victim.client, generated) else None

    def _victim(self) -> int:
        """The row that was admitted last, of the client with the most rows."""
        running, clients = self._running, self._waiting.running
        if len(clients) == 1:
            return int(running.order[-1])
        most = max(clients.values())
        rows: list[int] = running.order[::-1].tolist()
        return next(row for row in rows if clients[running.request(row).client] == most)

    def _preempt(self, row: int) -> None:
        request = replace(self._running.request(row), tokens=self._running.known_tokens(row), draft_context=0)
        self._waiting.put_back(request)  # first, as a client without requests is forgotten
        self._leave(np.array([row]))
        self.preemptions += 1

    def _leave(self, rows: Ints) -> None:
        """Stop running `rows`; they are vacated when the steps launched so far have been processed."""
        for row in rows.tolist():
            request = self._running.request(row)
            self._waiting.left(request.client, self._generated(row))
            self._share_prefix(row)
        self._running.remove(rows)
        self._leaving.extend((self._launched, row) for row in rows.tolist())
        self._vacate()

    def _generated(self, row: int) -> int:
        """Tokens that `row` was given since it was admitted."""
        return int(self._running.length[row]) - len(self._running.request(row).tokens)

    def _vacate(self) -> None:
        blocks = []
        while self._leaving and self._leaving[0][0] <= self._processed:
            blocks.append(self._running.vacate(self._leaving.popleft()[1]))
        if blocks:
            self._allocator.release(np.concatenate(blocks))

    def _share_prefix(self, row: int) -> None:
        """Insert the full blocks of `row` into the prefix cache."""
        if not self._prefixes.remembers:
            return
        request, cached = self._running.request(row), self._running.num_cached(row)
        self._prefixes.hash(request.hashes, self._running.known_tokens(row)[:cached], request.salt)
        full = request.hashes[: cached // self._running.block_size]
        self._prefixes.insert(full, self._running.blocks_of(row))

    def _prompts(self, budget: int | None = None, *, cut: bool = False) -> list[Chunk]:
        """Chunks of prompts already begun, then of newly admitted ones, while the step's budget lasts.

        While clients have unequally many running, those of who has fewer go first, and all are few and cut.
        """
        running, policies = self._running, self._policies
        chunks: list[Chunk] = []
        most = policies.prefill_max_tokens
        budget = most if budget is None else min(budget, most)
        begun, prompts = list(running.prefilling), policies.prefill_max_batch_size
        of_client = self._limit_of_clients()
        if of_client is not None:
            prompts = min(prompts, -(-of_client // _ROWS_OF_A_PROMPT))
            begun.sort(key=lambda row: self._rank(running.request(row)))
            cut |= isinstance(policies.chunking, WholePrompts)
        chunking = ChunkedPrompts(budget) if cut else policies.chunking
        while len(chunks) < prompts:
            waiting = next(iter(self._waiting), None) if of_client else None
            newcomer_first = not begun or (
                waiting is not None and self._rank(waiting) < self._rank(running.request(begun[0]))
            )
            row = self._admit(chunking, budget, first=not chunks) if newcomer_first else None
            if row is None and begun:
                row = begun.pop(0)
            if row is None:
                break
            context = int(running.computed[row])
            rest = int(running.length[row]) - context
            count = chunking.part(rest, budget, first=not chunks)
            if not count:
                break
            budget -= count
            chunks.append(Chunk(row, context, count, last=count == rest))
        return chunks

    def _rank(self, request: Request) -> int:
        """Return how many requests of its client run."""
        return self._waiting.running[request.client]

    def _admit(self, chunking: Chunking, budget: int, *, first: bool) -> int | None:
        """Give the next waiting request a row and blocks. Returns the row, or None if no request fits."""
        running = self._running
        if not len(self._waiting) or running.full:
            return None
        reuses: dict[int, Reuse] = {}

        def fits(request: Request) -> bool:
            if self._is_being_computed(request):
                return False
            self._prefixes.hash(request.hashes, request.tokens, request.salt)
            hashes = () if request.needs_scores else request.hashes
            for reuse in self._prefixes.find(hashes, len(request.tokens)):
                part = chunking.part(len(request.tokens) - reuse.tokens, budget, first=first)
                if part > 0 and self._has_room(request, reuse):
                    reuses[request.id] = reuse
                    return True
            return False

        request = self._policies.admission.pick(self._waiting, fits)
        if request is None:
            return None
        reuse = reuses[request.id]
        self._waiting.admit(request, 0 if request.admitted else len(request.prompt) - reuse.tokens)
        if not request.admitted:
            request.admitted = self._clock()
            request.cached_tokens = reuse.tokens
            self._prefixes.prompt_tokens += len(request.prompt)
            self._prefixes.cached_tokens += reuse.tokens
        return running.add(request, self._allocate(request, reuse), reuse.tokens)

    def _is_being_computed(self, request: Request) -> bool:
        """Tell whether the prompt of another choice of its request is, which this one will find cached."""
        if not self._prefixes.remembers or request.needs_scores:
            return False
        return any(self._running.request(row).prompt is request.prompt for row in self._running.prefilling)

    def _has_room(self, request: Request, reuse: Reuse) -> bool:
        """Return whether there are blocks for `request`, and one to spare if others run, so that it is not
        preempted at once."""
        revived = 0  # evictable blocks that get a reference
        if reuse.tokens:
            revived = self._allocator.num_unreferenced(np.concatenate([reuse.blocks, reuse.copy_from]))
        spare = int(len(self._running) > 0)
        return self._num_new(request, reuse) + revived + spare <= self._allocator.num_free

    def _allocate(self, request: Request, reuse: Reuse) -> Ints:
        """The blocks of an admitted request: shared ones, then new ones."""
        if not reuse.tokens:
            return self._allocator.allocate(self._num_new(request, reuse))
        self._allocator.share(np.concatenate([reuse.blocks, reuse.copy_from]))
        new = self._allocator.allocate(self._num_new(request, reuse))
        self._copies.append(np.stack([reuse.copy_from, new[: len(reuse.copy_from)]]))
        self._allocator.release(reuse.copy_from)
        return np.concatenate([reuse.blocks, new])

    def _num_new(self, request: Request, reuse: Reuse) -> int:
        return -(-len(request.tokens) // self._running.block_size) - len(reuse.blocks)
