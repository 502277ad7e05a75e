"""The resolved settings of all engines side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.schema.fairness import Agreement, EngineFact, Ledger, LedgerRow
from harness.schema.run_info import LaunchRecord


@dataclass(frozen=True)
class Setting:
    """A setting that engines report. `comparable`: it should be equal for all engines."""

    key: str
    name: str
    comparable: bool = True


SETTINGS = (
    Setting("device", "device"),
    Setting("threads", "compute threads"),
    Setting("tensor_parallel", "tensor parallel size"),
    Setting("data_parallel", "data parallel size"),
    Setting("cpus", "CPUs that it is confined to"),
    Setting("processes", "processes", comparable=False),
    Setting("http_processes", "of these, that speak HTTP", comparable=False),
    Setting("idle_cores", "cores busy with waiting, after the warm-up", comparable=False),
    Setting("dtype", "dtype"),
    Setting("kv_dtype", "KV cache dtype"),
    Setting("kv_tokens", "KV cache (tokens)"),
    Setting("block_size", "KV cache block (tokens)", comparable=False),
    Setting("context", "context (tokens)"),
    Setting("max_batch", "most requests in a batch"),
    Setting("max_batched_tokens", "most tokens in a step"),
    Setting("chunked_prefill", "chunked prefill"),
    Setting("prefix_cache", "prefix cache"),
    Setting("graphs", "CUDA graphs (batch sizes)"),
    Setting("attention", "attention backend", comparable=False),
    Setting("sampler", "sampler", comparable=False),
    Setting("overlap", "scheduling overlaps computing", comparable=False),
    Setting("endpoint", "endpoint"),
    Setting("prompts", "prompts are sent as", comparable=False),
    Setting("answers", "answers end"),
    Setting("refused", "fields of a request that it refuses", comparable=False),
)


def ledger(launches: Sequence[LaunchRecord]) -> Ledger:
    """One row for each setting that an engine reports, in the order of SETTINGS."""
    rows = []
    for setting in SETTINGS:
        facts = {launch.label: launch.facts.get(setting.key) for launch in launches}
        if any(facts.values()):
            rows.append(
                LedgerRow(key=setting.key, name=setting.name, facts=facts, agreement=_agree(setting, facts))
            )
    return Ledger(labels=[launch.label for launch in launches], rows=rows)


def _agree(setting: Setting, facts: dict[str, EngineFact | None]) -> Agreement:
    if not setting.comparable:
        return "own"
    values = [json.dumps(fact.value, sort_keys=True) for fact in facts.values() if fact is not None]
    if len(set(values)) > 1:
        return "differs"
    return "equal" if len(values) > 1 else "unknown"
