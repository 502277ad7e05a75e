"""Kernels and steps of the Llama family on this GPU, as Markdown tables.

    python -m benchmarks.llama WHAT MODEL …

WHAT is `steps` (each step and its lower bound), `kernels` (kernels that the steps run), `sampling` (steps
with each kind of sampling), `batch` (an offline batch by kind of step), `parts` (kernels of a layer one by
one), `plans` (skinny GEMMs in every tiling), `loop` (a closed loop) or `experts` (mixtures of experts). MODEL
is a shape, such as random:qwen3-8b.
"""

from __future__ import annotations

import argparse

from benchmarks.llama import batch, experts, kernels, loop, parts, plans, sampling, steps
from benchmarks.models import llama_name

MEASUREMENTS = {
    "steps": steps, "kernels": kernels, "sampling": sampling, "batch": batch, "parts": parts, "plans": plans,
    "loop": loop, "experts": experts,
}  # fmt: skip


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llama")
    commands = parser.add_subparsers(dest="what", required=True)
    for name, module in MEASUREMENTS.items():
        command = commands.add_parser(
            name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("model", type=llama_name)
        command.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
        module.add_arguments(command)
    arguments = parser.parse_args()
    MEASUREMENTS[arguments.what].main(arguments)


if __name__ == "__main__":
    main()
