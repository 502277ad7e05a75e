"""Kernels and steps of the Llama family on this GPU, as Markdown tables.

    python -m benchmarks.llama WHAT MODEL …

WHAT is `steps` (each step and its lower bound), `kernels` (kernels that the steps run), `parts` (kernels of a
layer one by one), `plans` (skinny GEMMs in every tiling) or `experts` (mixtures of experts). MODEL is a
shape, such as random:qwen3-8b.
"""

from __future__ import annotations

import argparse

from benchmarks.llama import experts, kernels, parts, plans, steps
from benchmarks.models import llama_name

MEASUREMENTS = {"steps": steps, "kernels": kernels, "parts": parts, "plans": plans, "experts": experts}


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
