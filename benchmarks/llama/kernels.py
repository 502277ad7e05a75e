"""Kernels that the steps of a Llama run on this GPU, without a server or weights on disk.

    python -m benchmarks.llama kernels random:qwen3-8b --prompts 8x1024 --decode 64x1088 --loop 64

`--prompts 8x1024`: a prefill step of 8 prompts of 1,024 tokens. `--decode 64x1088`: decode steps of 64
requests with 1,088 tokens each. `--loop 64`: steps of a closed loop with 64 requests in flight, of
`--input-len` and `--output-len`, once the first have ended. torch.profiler records `--steps` steps of each.
`idle`: time in which no kernel ran. Weights and `--option` as in `steps`.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama.steps import add, engine_of, run
from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams


def table(what: str, steps: int, work: Callable[[], object]) -> str:
    """Kernels of `work`, which runs `steps` steps, those with the most time first."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    spans = defaultdict[str, list[tuple[float, float]]](list)
    for event in profiled.events() or ():
        if event.device_type == DeviceType.CUDA:
            spans[_short(event.name)].append((event.time_range.start, event.time_range.end))
    ordered = sorted(itertools.chain(*spans.values()))
    busy, reached = 0.0, ordered[0][0]
    for start, end in ordered:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    whole = reached - ordered[0][0]
    lines = [
        f"\n{what}: {whole / steps:,.0f} µs a step, idle {(whole - busy) / steps:,.0f} µs, {steps} steps\n",
        "| kernel | a step | µs each | µs a step | share |\n|---|---:|---:|---:|---:|",
    ]
    taken = Counter({name: sum(end - start for start, end in each) for name, each in spans.items()})
    for name, total in taken.most_common(16):
        count = len(spans[name])
        lines.append(
            f"| `{name}` | {count / steps:.1f} | {total / count:.1f} | {total / steps:,.0f} "
            f"| {100 * total / whole:.1f} % |"
        )
    return "\n".join(lines)


def _short(name: str) -> str:
    """A kernel's name without its arguments and most of its template parameters."""
    return re.sub(r"(void |at::native::|<.*|\(.*)", "", name)[:72] or name[:72]


def decoding(engine: Engine, count: int, context: int, steps: int) -> Callable[[], object]:
    """Prefill `count` requests of `context` tokens. Returns a function that runs `steps` decode steps."""
    add(engine, count, context, steps + 200)
    while engine.num_waiting or engine._loop._running.prefilling:
        engine.step()
    for _ in range(3):
        engine.step()
    return lambda: [engine.step() for _ in range(steps)]


def loop(engine: Engine, in_flight: int, input_len: int, output_len: int) -> Iterator[int]:
    """A closed loop without end, a step at each turn. Yields how many requests have been submitted."""
    rng, submitted = np.random.default_rng(0), 0
    ended = in_flight
    while True:
        for _ in range(ended):
            prompt = rng.integers(0, 50_000, input_len, dtype=np.int32)
            engine.add(submitted, prompt, SamplingParams(output_len, ignore_eos=True))
            submitted += 1
        result = engine.step()
        ended = 0 if result is None else len(result.finished)
        yield submitted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--prompts", nargs="*", default=[])
    parser.add_argument("--decode", nargs="*", default=[])
    parser.add_argument("--loop", type=int, nargs="*", default=[])
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)


def main(arguments: argparse.Namespace) -> None:
    """Print a table of kernels for each kind of step."""
    prompts, decode = (
        [tuple(map(int, text.split("x"))) for text in each] for each in (arguments.prompts, arguments.decode)
    )
    lengths = arguments.input_len, arguments.output_len
    longest = max([sum(lengths), *(length + 16 for _, length in prompts), *(n + 256 for _, n in decode)])
    most = max([1, *arguments.loop, *(count for count, _ in [*prompts, *decode])])
    engine = engine_of(
        arguments.model,
        plain=False,
        max_model_len=longest,
        max_active_requests=most,
        options=arguments.option,
    )
    for count, length in prompts:
        for _ in range(2):
            add(engine, count, length, 1)
            run(engine)
        add(engine, count, length, 1)
        print(table(f"{count} prompts of {length}", 1, lambda: run(engine)), flush=True)
    for count, context in decode:
        work = decoding(engine, count, context, arguments.steps)
        print(table(f"{count} requests of {context}", arguments.steps, work), flush=True)
        for index in range(count):
            engine.discard(index)
        run(engine)
    for count in arguments.loop:
        turns = loop(engine, count, *lengths)
        for _ in range(lengths[1] + 40):
            next(turns)
        what = f"{count} in flight, {lengths[0]} in, {lengths[1]} out"
        some = itertools.islice(turns, arguments.steps)
        print(table(what, arguments.steps, partial(list, some)), flush=True)
        for index in range(next(turns)):
            engine.discard(index)
        run(engine)
