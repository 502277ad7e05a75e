"""`roseinfer bench-scheduler`: the engine without HTTP, or its scheduler in virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from roseinfer.bench.cost import GPT2_ON_H200, StepTimes, TimedRunner
from roseinfer.bench.replay import Arrival, Floats, Replayed, WallClock, replay
from roseinfer.bench.simulator import SimulatedEngine, SimulatedRunner, VirtualClock
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.cache_size import configured_blocks
from roseinfer.engine.core import Engine
from roseinfer.engine.resolve import LARGE, resolve_policies
from roseinfer.engine.runner import Runner
from roseinfer.scheduler.cost import StepCost, StepCosts, fit


@dataclass(frozen=True)
class Outcome:
    """A replay and its steps, and what the engine learned of their costs. `host`: CPU seconds of this process
    a step, if the device is simulated."""

    engine: str
    replayed: Replayed
    steps: StepTimes
    preemptions: int
    costs: StepCosts | None
    host: float | None = None


def measure(config: EngineConfig, arrivals: Sequence[Arrival], in_flight: int | None = None) -> Outcome:
    """Replay on a real engine, ids of prompts modulo its vocabulary. Raises RequestError when a request does
    not fit its limits."""
    engine, clock = Engine(config), WallClock()
    vocab_size = engine.info.limits.vocab_size
    arrivals = [replace(arrival, prompt=arrival.prompt % vocab_size) for arrival in arrivals]
    timed: list[TimedRunner] = []

    def watch(runner: Runner) -> Runner:
        timed.append(TimedRunner(runner, clock))
        return timed[0]

    engine.watch(watch)
    replayed = replay(engine, arrivals, clock, in_flight)
    engine.check_idle()
    return Outcome(engine.info.describe(), replayed, timed[0].times, engine.preemptions, engine.step_costs)


def simulate(
    config: EngineConfig,
    arrivals: Sequence[Arrival],
    cost: StepCost,
    host: float,
    in_flight: int | None = None,
) -> Outcome:
    """Replay in virtual time; a step takes `cost` on the device, and `host` seconds before its launch.

    Settings that depend on the device are those of a GPU, and where steps with prefill and decode share the
    weights, of a large model. Raises ConfigError when a request does not fit.
    """
    clock = VirtualClock()
    longest = max(len(arrival.prompt) + arrival.output for arrival in arrivals)
    max_model_len = config.max_model_len or longest
    num_blocks = configured_blocks(config, max_model_len)
    if longest > min(max_model_len, num_blocks * config.block_size):
        raise ConfigError(f"the longest request has {longest} tokens; raise --max-model-len or --kv-tokens")
    timed = TimedRunner(SimulatedRunner(cost, host, clock), clock)
    policies = resolve_policies(config, torch.device("cuda"), LARGE + 1 if cost.shared else 0)
    if policies.costs is not None:
        policies.costs.know(cost)  # as after a warm-up
    engine = SimulatedEngine(
        config, timed, policies, clock, max_model_len=max_model_len, num_blocks=num_blocks
    )
    start = time.process_time()
    replayed = replay(engine, arrivals, clock, in_flight)
    real = time.process_time() - start
    about = f"simulated, a KV cache of {num_blocks * config.block_size} tokens"
    host_s = real / len(timed.times.seconds)
    return Outcome(about, replayed, timed.times, engine.preemptions, policies.costs, host_s)


def read_cost(path: Path | None) -> StepCost:
    """A cost model that `write_cost` wrote; without a path that of GPT-2 on an H200. Raises ConfigError."""
    if path is None:
        return GPT2_ON_H200
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepCost)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is not a cost model of steps: {error}") from None


def write_cost(path: Path, steps: StepTimes) -> None:
    """Write the cost model of `steps` to `path` as JSON. Raises ConfigError where it cannot be written."""
    cost = fit(steps.contents, steps.seconds)
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(cost)) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def describe(outcome: Outcome, *, online: bool) -> list[str]:
    """The lines to print."""
    replayed, seconds = outcome.replayed, np.array(outcome.steps.seconds)
    contents = np.array(outcome.steps.contents)
    prefills = contents[:, 0] > 0
    prompts, answers = int(replayed.prompt_tokens.sum()), int(replayed.output_tokens.sum())
    cached = sum(end.cached_tokens for end in replayed.finished)
    lines = [
        f"Engine: {outcome.engine}",
        f"Requests: {len(replayed.due)}",
        f"Prompt tokens (total): {prompts}, {cached} of them from the prefix cache",
        f"Completion tokens (total): {answers}",
        f"Steps: {len(seconds)}, {int(prefills.sum())} of them with prompts",
        f"Preemptions: {outcome.preemptions}",
        f"Duration: {replayed.duration:.3f} s",
        f"Prefill throughput: {_rate(contents[prefills, 1], seconds[prefills])} in steps with prompts",
        f"Decode throughput: {_rate(contents[~prefills, 4], seconds[~prefills])} in steps without",
        f"Throughput (completion,total): {answers / replayed.duration:,.1f},"
        f"{(prompts + answers) / replayed.duration:,.1f} tokens/s",
    ]
    if outcome.host is not None:
        lines.append(
            f"Host: {outcome.host * 1e6:.0f} us of CPU time a step, the simulation's own part included"
        )
    if outcome.costs is not None and outcome.costs.cost is not None:
        fields = ", ".join(f"{name} {value * 1e6:.4g}" for name, value in asdict(outcome.costs.cost).items())
        lines.append(f"Learned cost, us: {fields}; median error {outcome.costs.error:.1%}")
    if online:
        lines += [_spread(*spread) for spread in replayed.spreads().items()]
    return lines


def _rate(tokens: Floats, seconds: Floats) -> str:
    return f"{tokens.sum() / seconds.sum():,.1f} tokens/s" if len(seconds) else "none"


def _spread(name: str, seconds: Floats) -> str:
    if not len(seconds):
        return f"{name}: none"
    p50, p95, p99 = np.percentile(seconds * 1e3, [50, 95, 99])
    return f"{name}: mean {seconds.mean() * 1e3:.2f}, p50/p95/p99 {p50:.2f}/{p95:.2f}/{p99:.2f} ms"
