"""Replays requests on an engine at their arrival times, without HTTP, and records when tokens come."""

from __future__ import annotations

import csv
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from roseinfer.batch import Ints
from roseinfer.config import ConfigError
from roseinfer.request.params import Finished, SamplingParams
from roseinfer.scheduler.scheduler import StepResult

Floats = NDArray[np.float64]

#: Prompts are made of token ids below this, which nearly every model has.
VOCAB_SIZE = 1000


class Clock(ABC):
    """A clock, in seconds."""

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def wait_until(self, time: float) -> None: ...


class WallClock(Clock):
    """The monotonic clock, as the engine uses it."""

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, time_s: float) -> None:
        time.sleep(max(0.0, time_s - time.monotonic()))


class Steps(Protocol):
    """The part of an engine that a replay calls."""

    def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None: ...

    def step(self) -> StepResult | None: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def launch_at(self) -> float: ...


@dataclass(frozen=True)
class Arrival:
    """`at` seconds after the start, a prompt `[n]` that is answered with `output` tokens."""

    at: float
    prompt: NDArray[np.int32]
    output: int


@dataclass(frozen=True)
class Replayed:
    """For each request, `[n]`: its numbers of tokens, and when it was due and its first and last token came,
    in seconds after the start. `gaps`: between two tokens of a request, of all. `duration`: until the last
    token of all."""

    prompt_tokens: Ints
    output_tokens: Ints
    due: Floats
    first: Floats
    last: Floats
    gaps: Floats
    finished: tuple[Finished, ...]
    duration: float

    def spreads(self) -> dict[str, Floats]:
        """TTFT, TPOT, ITL and latency of the requests, in seconds."""
        several = self.output_tokens > 1
        generation = (self.last - self.first)[several] / (self.output_tokens[several] - 1)
        ttft, latency = self.first - self.due, self.last - self.due
        return {"TTFT": ttft, "TPOT": generation, "ITL": self.gaps, "Latency": latency}


def replay(
    engine: Steps, arrivals: Sequence[Arrival], clock: Clock, in_flight: int | None = None
) -> Replayed:
    """Submit `arrivals`, in order of their times, to an idle engine, and step it until all are answered.

    With `in_flight`, one whose time has come is due only when fewer requests than that are unfinished.
    """
    count, start, submitted = len(arrivals), clock.now(), 0
    first, last, due = np.zeros(count), np.zeros(count), np.array([arrival.at for arrival in arrivals])
    finished: list[Finished] = []
    gaps: list[Floats] = []

    def next_due() -> float:
        full = submitted == count or (in_flight is not None and submitted - len(finished) >= in_flight)
        return inf if full else start + arrivals[submitted].at

    while submitted < count or engine.has_work:
        while next_due() <= clock.now():
            if in_flight is not None:
                due[submitted] = clock.now() - start
            params = SamplingParams(arrivals[submitted].output, ignore_eos=True)
            engine.add(submitted, arrivals[submitted].prompt, params)
            submitted += 1
        if clock.now() < engine.launch_at:
            clock.wait_until(min(next_due(), engine.launch_at))
            continue
        result = engine.step()
        if result is None:
            clock.wait_until(next_due())
            continue
        now = clock.now() - start
        since = now - last[result.ids]
        since[1:][result.ids[1:] == result.ids[:-1]] = 0  # drafts that were accepted
        gaps.append(since[first[result.ids] > 0])
        first[result.ids] = np.where(first[result.ids] == 0, now, first[result.ids])
        last[result.ids] = now
        finished += result.finished
    return Replayed(
        prompt_tokens=np.array([len(arrival.prompt) for arrival in arrivals]),
        output_tokens=np.array([arrival.output for arrival in arrivals]),
        due=due,
        first=first,
        last=last,
        gaps=np.concatenate(gaps),
        finished=tuple(finished),
        duration=clock.now() - start,
    )


def uniform(count: int, rate: float | None, length: int, output: int, seed: int) -> list[Arrival]:
    """Distinct random prompts, all at once or in a Poisson process of `rate` a second."""
    rng = np.random.default_rng(seed)
    at = np.zeros(count) if rate is None else np.cumsum(rng.exponential(1 / rate, count))
    return [Arrival(float(due), _prompt(rng, length), output) for due in at]


def from_trace(path: Path, scale: float, count: int, seed: int) -> list[Arrival]:
    """The first `count` rows of a CSV with arrival_s (multiplied by `scale`), input_tokens and
    output_tokens. Raises ConfigError."""
    rng = np.random.default_rng(seed)
    try:
        with path.open(newline="") as lines:
            rows = [_row(row) for row, _ in zip(csv.DictReader(lines), range(count), strict=False)]
        rows.sort(key=itemgetter(0))
        first = rows[0][0]
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{path} is no trace ({error}); it needs the columns arrival_s, input_tokens, output_tokens"
        ) from None
    return [Arrival((at - first) * scale, _prompt(rng, length), output) for at, length, output in rows]


def _row(row: dict[str, str]) -> tuple[float, int, int]:
    """Arrival in seconds, prompt tokens, and tokens of the answer."""
    at, length, output = float(row["arrival_s"]), int(row["input_tokens"]), int(row["output_tokens"])
    if not isfinite(at) or length < 1 or output < 1:
        raise ValueError(f"a row has {length} and {output} tokens at {at} s")
    return at, length, output


def _prompt(rng: np.random.Generator, length: int) -> NDArray[np.int32]:
    return rng.integers(0, VOCAB_SIZE, length).astype(np.int32)
