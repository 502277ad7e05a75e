"""The resolved settings of all engines side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.schema.fairness import Agreement, EngineFact, Ledger, LedgerRow
from harness.schema.run_info import LaunchRecord

#: Settings that engines report, as they are shown. Those of OWN need not be equal for all engines.
SETTINGS = {
    "device": "device",
    "threads": "compute threads",
    "tensor_parallel": "tensor parallel size",
    "data_parallel": "data parallel size",
    "cpus": "CPUs that it is confined to",
    "processes": "processes",
    "http_processes": "of these, that speak HTTP",
    "idle_cores": "cores busy with waiting, after the warm-up",
    "dtype": "dtype",
    "quantization": "weights quantized",
    "kv_dtype": "KV cache dtype",
    "kv_tokens": "KV cache (tokens)",
    "block_size": "KV cache block (tokens)",
    "context": "context (tokens)",
    "max_batch": "most requests in a batch",
    "max_batched_tokens": "most tokens in a step",
    "chunked_prefill": "chunked prefill",
    "prefix_cache": "prefix cache",
    "graphs": "CUDA graphs (batch sizes)",
    "attention": "attention backend",
    "sampler": "sampler",
    "overlap": "scheduling overlaps computing",
    "endpoint": "endpoint",
    "prompts": "prompts are sent as",
    "answers": "answers end",
    "sampling": "tokens are drawn",
    "body": "other fields of a request",
    "refused": "fields of a request that it refuses",
}
OWN = {
    *("processes", "http_processes", "idle_cores", "block_size", "attention"),
    *("sampler", "overlap", "prompts", "refused"),
}


def ledger(launches: Sequence[LaunchRecord]) -> Ledger:
    """One row for each setting that an engine reports, in the order of SETTINGS."""
    rows = []
    for key, name in SETTINGS.items():
        facts = {launch.label: launch.facts.get(key) for launch in launches}
        if any(fact is not None and (key, fact.value) != ("body", "none") for fact in facts.values()):
            rows.append(LedgerRow(key=key, name=name, facts=facts, agreement=_agree(key, facts)))
    return Ledger(labels=[launch.label for launch in launches], rows=rows)


def _agree(key: str, facts: dict[str, EngineFact | None]) -> Agreement:
    if key in OWN:
        return "own"
    values = [json.dumps(fact.value, sort_keys=True) for fact in facts.values() if fact is not None]
    if len(set(values)) > 1:
        return "differs"
    return "equal" if len(values) > 1 else "unknown"
