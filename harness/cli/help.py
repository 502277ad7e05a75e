"""Help as plain text: options in groups, names whole, descriptions wrapped beside them.

Typer's own panels leave a third of 80 columns for the descriptions of many options, and cut long words.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

#: Names of settings, and of the commands' own parameters, by title. A test finds settings without a group.
GROUPS: dict[str, tuple[str, ...]] = {
    "Tuning": ("engine", "space", "objective", "configurations", "reduction", "finalists"),
    "Search": ("by", "lowest", "highest", "first", "cells", "per_start", "tolerance", "max_seconds"),
    "Engines": (
        *("engines", "model", "device", "dtype", "max_model_len", "vocab_size", "cpu_threads"),
        *("tensor_parallel_size", "data_parallel_size", "max_running_requests", "gpu_memory_utilization"),
        *("quantization", "prefix_cache"),
    ),
    "Servers that are running already": (
        *("base_url", "server", "served_model", "tokenizer", "endpoint", "header", "api_key_env", "ca_cert"),
        *("wait_ready", "prompt_nonce"),
    ),
    "Load": (
        "preset",
        *("trace", "fit", "max_output_len", "scales", "concurrency", "rounds", "request_rate", "arrivals"),
        *("ramp", "mixture", "dataset", "turns", "max_think_s", "n", "num_prompts", "input_len"),
        *("output_len", "ignore_eos", "text_prompts", "lora", "response_format", "response_format_share"),
        *("seed", "timeout_s", "deadline_s"),
    ),
    "Confidence in the numbers": (
        *("repeats", "interleave", "aa", "warmup", "settle", "min_duration", "window", "steady_state"),
        *("check_answers", "accuracy", "slo", "clients", "calibrate"),
        *("server_metrics", "metrics_interval", "price"),
    ),
    "More than one machine": (
        *("cluster", "engine_needs", "load_nodes", "side_by_side", "engines_per_node", "share"),
    ),
    "Profile": ("profile", "profile_only"),
    "Settings file, output and progress": (
        "config",
        "resume",
        "out",
        "serve",
        "open_report",
        "as_json",
        "quiet",
        "help",
    ),
}
OTHERS = "Others"


def in_groups(names: list[str]) -> dict[str, list[str]]:
    """Return the names by title, in the order of the groups; what no group has comes last."""
    groups = {title: [name for name in group if name in names] for title, group in GROUPS.items()}
    grouped = {name for group in groups.values() for name in group}
    every = groups | {OTHERS: [name for name in names if name not in grouped]}
    return {title: group for title, group in every.items() if group}


#: For every command: `-h` is `--help`, and lines are as wide as the terminal up to this width.
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
#: Widest column of names; a longer name has a line of its own.
NAME_WIDTH = 34


class GroupedCommand(TyperCommand):
    """A command whose help ends with examples and, if it takes settings, has a section for each group."""

    examples: tuple[str, ...] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        params = {str(param.name): param for param in self.get_params(ctx)}
        if "config" not in params:
            super().format_options(ctx, formatter)
            return
        for title, names in in_groups(list(params)).items():
            records = (params[name].get_help_record(ctx) for name in names)
            with formatter.section(title):
                formatter.write_dl([_plain(*record) for record in records if record], col_max=NAME_WIDTH)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one a line however long it is: they are copied."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))


def _plain(names: str, text: str) -> tuple[str, str]:
    """A switch and its opposite once, as `--[no-]x`; defaults without parentheses, as `on` and `off`; limits
    in words."""
    names = re.sub(r"--(\S+) / --no-\1", r"--[no-]\1", names)
    text = re.sub(r"\[default: \((.*)\)\]$", r"[default: \1]", text)
    text = re.sub(r"\bx>=(\S+)\]$", r"at least \1]", text)
    off = "  [default: off]" if "--[no-]" in names else ""
    return names, text.replace("[default: True]", "[default: on]").replace("  [default: False]", off)
