"""The groups of settings, in the order in which help and `bench config init` list them."""

from __future__ import annotations

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
