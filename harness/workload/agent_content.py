"""Requests of agents' jobs: token ids that are shared as the blocks of a job are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np

from harness.datasets.agents import AgentJobs, AgentTurn
from harness.errors import UsageError
from harness.traces import sampling
from harness.traces.fit import room
from harness.workload.content import Content, Ints, at_quantiles
from harness.workload.dataset_content import ORDER
from harness.workload.planned_requests import PlannedRequest
from harness.workload.prompts import PromptSource


@dataclass(frozen=True)
class AgentContent(Content):
    """Each job as a session. One that outgrows the context ends before the turn that does."""

    agent_jobs: AgentJobs
    vocab_size: int
    context: int
    max_output: int | None = None

    def take(self, n: int, seed: int, shape_seed: int, first: int = 0) -> list[PlannedRequest]:
        """Plan requests of `n` jobs. Blocks are equal if their ids are; a job that comes again has others."""
        source, block_size = PromptSource(self.vocab_size, seed, "agents"), self.agent_jobs.block_size
        requests: list[PlannedRequest] = []
        for session, (place, rounds) in enumerate(self._places(n, shape_seed, first)):
            for turn, request in enumerate(self._jobs[place]):
                index = len(requests)
                blocks = [block + (rounds << 100) for block in request.block_ids]
                number = (first + session) << 32 | turn
                prompt = source.shared(number, request.input_tokens, blocks, block_size)
                after, think_s = (index - 1, request.think_s) if turn else (None, None)
                requests.append(
                    PlannedRequest(
                        index, None, prompt, self._output(request), after,
                        think_s=think_s, session=session, turn=turn,
                    )
                )  # fmt: skip
        return requests

    def lengths(self, n: int, shape_seed: int, first: int = 0) -> tuple[Ints, Ints]:
        turns = [turn for place, _ in self._places(n, shape_seed, first) for turn in self._jobs[place]]
        inputs = np.array([turn.input_tokens for turn in turns], dtype=np.int64)
        return inputs, np.array([self._output(turn) for turn in turns], dtype=np.int64)

    def input_lengths(self, size: int) -> list[int]:
        return at_quantiles([turn.input_tokens for job in self._jobs for turn in job], size)

    @property
    def about(self) -> dict[str, str | None]:
        jobs = self.agent_jobs
        return {"name": jobs.name, "sha256": jobs.sha256, "note": jobs.left_out}

    @property
    def dropped(self) -> int:
        """Number of turns that do not fit the context, and of all after them."""
        return sum(map(len, self.agent_jobs.jobs)) - sum(map(len, self._jobs))

    @property
    def text(self) -> str:
        return f"{len(self._jobs)} jobs of agents of {self.agent_jobs.origin}"

    @cached_property
    def _jobs(self) -> list[tuple[AgentTurn, ...]]:
        """Jobs whose first turn fits, each as far as it fits."""
        heads = (tuple(takewhile(self._fits, job)) for job in self.agent_jobs.jobs)
        jobs = [head for head in heads if head]
        if not jobs:
            raise UsageError(
                f"no job of {self.agent_jobs.name} fits a context of {self.context} tokens",
                "lower --max-output-len, or use a model with a longer context",
            )
        return jobs

    def _fits(self, turn: AgentTurn) -> bool:
        return turn.input_tokens + self._output(turn) <= room(self.context)

    def _output(self, turn: AgentTurn) -> int:
        return turn.output_tokens if self.max_output is None else min(turn.output_tokens, self.max_output)

    def _places(self, n: int, shape_seed: int, first: int) -> list[tuple[int, int]]:
        """Return jobs in an order of the seed, again and again: places, and how often each came before."""
        jobs = len(self._jobs)
        order = np.argsort(sampling.uniforms(jobs, shape_seed, ORDER), kind="stable").tolist()
        return [(order[i % jobs], i // jobs) for i in range(first, first + n)]
