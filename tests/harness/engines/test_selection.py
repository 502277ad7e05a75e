"""The engines of a run, in words."""

from __future__ import annotations

from pathlib import Path

from harness.engines.base import Installation
from harness.engines.placement import CpuSplit, Placement
from harness.engines.selection import Selection


def test_what_a_node_has_is_said_without_the_types_of_our_code() -> None:
    found = [
        Installation("roseinfer", "0.2.0", "roseinfer", Path("/a/python"), "here"),
        Installation("vllm", "0.32.0", "vllm", Path("/b/python"), "here", versions={"torch": "2.9"}),
    ]
    placement = Placement("cpu", "fp32", 2, CpuSplit(None, None))
    assert Selection([], {}, found, [], None, placement).equipment == (
        "cpu, fp32, 2 threads, roseinfer 0.2.0 at /a/python, vllm 0.32.0 (torch 2.9) at /b/python"
    )
    placement = Placement("cuda", "fp16", "auto", CpuSplit(None, None))
    assert Selection([], {}, [], [], None, placement).equipment == "cuda, fp16"
