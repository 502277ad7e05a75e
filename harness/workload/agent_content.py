"""Requests of agents' jobs: token ids that share what the blocks of a job say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np

from harness.datasets.agent_jobs import AgentJobs, AgentTurn
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
        """Requests of `n` jobs. Blocks are equal where their ids are; a job that comes again has others."""
        source, block_size = PromptSource(self.vocab_size, seed, "agents"), self.agent_jobs.block_size
        requests: list[PlannedRequest] = []
        for session, (place, rounds) in enumerate(self._places(n, shape_seed, first)):
            for turn, asked in enumerate(self._jobs[place]):
                index = len(requests)
                blocks = [block + (rounds << 100) for block in asked.block_ids]
                own = (first + session) << 32 | turn
                prompt = source.shared(own, asked.input_tokens, blocks, block_size)
                after, think_s = (index - 1, asked.think_s) if turn else (None, None)
                requests.append(
                    PlannedRequest(
                        index, None, prompt, self._output(asked), after,
                        think_s=think_s, session=session, turn=turn,
                    )
                )  # fmt: skip
        return requests

    def lengths(self, n: int, shape_seed: int, first: int = 0) -> tuple[Ints, Ints]:
        taken = [turn for place, _ in self._places(n, shape_seed, first) for turn in self._jobs[place]]
        inputs = np.array([turn.input_tokens for turn in taken], dtype=np.int64)
        return inputs, np.array([self._output(turn) for turn in taken], dtype=np.int64)

    def input_lengths(self, size: int) -> list[int]:
        return at_quantiles([turn.input_tokens for job in self._jobs for turn in job], size)

    @property
    def about(self) -> dict[str, str | None]:
        found = self.agent_jobs
        return {"name": found.name, "sha256": found.sha256, "note": found.left_out}

    @property
    def dropped(self) -> int:
        """Turns that do not fit the context, and all after them."""
        return sum(map(len, self.agent_jobs.jobs)) - sum(map(len, self._jobs))

    @property
    def what(self) -> str:
        return f"{len(self._jobs)} jobs of agents of {self.agent_jobs.origin}"

    @cached_property
    def _jobs(self) -> list[tuple[AgentTurn, ...]]:
        """Those whose first turn fits, each as far as it fits."""
        found = []
        for job in self.agent_jobs.jobs:
            kept = tuple(takewhile(self._fits, job))
            if kept:
                found.append(kept)
        if not found:
            raise UsageError(
                f"no job of {self.agent_jobs.name} fits a context of {self.context} tokens",
                "lower --max-output-len, or use a model with a longer context",
            )
        return found

    def _fits(self, turn: AgentTurn) -> bool:
        return turn.input_tokens + self._output(turn) <= room(self.context)

    def _output(self, turn: AgentTurn) -> int:
        return turn.output_tokens if self.max_output is None else min(turn.output_tokens, self.max_output)

    def _places(self, n: int, shape_seed: int, first: int) -> list[tuple[int, int]]:
        """Jobs in an order of the seed, again and again: the place of each, and how often it came before."""
        jobs = len(self._jobs)
        order = np.argsort(sampling.uniforms(jobs, shape_seed, ORDER), kind="stable").tolist()
        return [(order[i % jobs], i // jobs) for i in range(first, first + n)]
