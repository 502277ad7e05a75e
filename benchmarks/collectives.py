"""The engine's collectives compared with NCCL and PyTorch's symmetric memory, on GPUs of a machine; Markdown.

    python -m benchmarks.collectives --ranks 2 --width 4096 --rows 1 8 64 1024

µs a call in a captured graph, after the results were checked against float32. See
`roseinfer.kernels.cuda.collectives`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, multiprocessing
from torch import distributed as dist

from roseinfer.kernels.cuda.collectives import PeerMemory, PeerSizes

EPS, VOCABULARY, CALLS = 1e-6, 151_936, 50
#: PyTorch's type annotations lack most of what is used here.
_dist: Any = dist
_symmetric: Any = torch.ops.symm_mem


def check(got: Tensor, wanted: Tensor) -> None:
    """Compare sums of a few bfloat16 numbers with float32 ones."""
    torch.testing.assert_close(got.float(), wanted, rtol=2e-2, atol=4e-2)


def microseconds(call: Callable[[], object]) -> float:
    """µs of a call, in a captured graph of CALLS."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    found = []
    for _ in range(5):
        _dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end) / CALLS)
    return float(statistics.median(found))


def equal_on_all(*shape: int) -> Tensor:
    drawn = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    _dist.broadcast(drawn, 0)
    return drawn


def checked(memory: PeerMemory, rank: int, ranks: int, width: int, rows: int) -> list[float]:
    """Check, then time: all-reduce, all-reduce with RMS norm, broadcast, and gather of logits. µs each."""
    parts, x, gain = equal_on_all(ranks, rows, width), equal_on_all(rows, width), equal_on_all(width)
    share = -(-VOCABULARY // ranks)
    logits = equal_on_all(rows, VOCABULARY)
    wanted = x.float() + parts.float().sum(0)
    memory.part(rows).copy_(parts[rank])
    found = memory.add_(x.clone())
    check(found, wanted)
    everywhere = [torch.empty_like(found) for _ in range(ranks)]
    _dist.all_gather(everywhere, found)
    assert all(torch.equal(found, other) for other in everywhere), "ranks have different sums"
    memory.part(rows).copy_(parts[rank])
    normed = memory.add_norm_(x.clone(), gain, EPS)
    check(normed, wanted * torch.rsqrt(wanted.square().mean(1, keepdim=True) + EPS) * gain.float())
    memory.part(rows).copy_(parts[rank])
    check(memory.broadcast(rows), parts[0].float())
    memory.logits(rows).copy_(logits[:, rank * share : (rank + 1) * share])
    gathered = memory.gather(rows)
    if rank == 0:
        check(gathered, logits.float())
    zeros = torch.zeros_like(x)

    def summed(norm: bool) -> None:
        memory.part(rows)
        if norm:
            memory.add_norm_(zeros, gain, EPS)
        else:
            memory.add_(zeros)

    return [
        microseconds(lambda: summed(False)),
        microseconds(lambda: summed(True)),
        microseconds(lambda: memory.broadcast(rows)),
        microseconds(lambda: memory.gather(rows)),
    ]


def measure(rank: int, given: argparse.Namespace, file: str) -> None:
    """The process of one rank."""
    torch.cuda.set_device(rank)
    ranks, width, most = given.ranks, given.width, max(given.rows)
    _dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=ranks)
    device = torch.device("cuda", rank)
    sizes = PeerSizes(most, width, most, -(-VOCABULARY // ranks), VOCABULARY)
    memory = PeerMemory(sizes, rank, ranks, _dist.group.WORLD, torch.bfloat16, device)
    shared = torch.distributed._symmetric_memory.empty(most, width, dtype=torch.bfloat16, device=device)
    torch.distributed._symmetric_memory.rendezvous(shared, _dist.group.WORLD)
    name = _dist.group.WORLD.group_name
    if rank == 0:
        print("| rows | sum | sum and norm | rank 0's rows | logits | NCCL's sum | symm_mem's sum |")
        print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for rows in given.rows:
        taken = checked(memory, rank, ranks, width, rows)
        x, part = torch.zeros(rows, width, device=device, dtype=torch.bfloat16), shared[:rows]
        taken.append(microseconds(lambda x=x: _dist.all_reduce(x)))  # type: ignore[misc]
        taken.append(microseconds(lambda part=part: _symmetric.one_shot_all_reduce(part, "sum", name)))  # type: ignore[misc]
        if rank == 0:
            print(f"| {rows} | {' | '.join(f'{each:.1f}' for each in taken)} |", flush=True)
    _dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256, 1024])
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
            measure, (given, str(Path(folder, "ranks"))), given.ranks
        )


if __name__ == "__main__":
    main()
