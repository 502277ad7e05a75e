"""A small Ray cluster on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Of a node's object store.
STORE_BYTES = 80 << 20
#: Settings of a run that takes a moment.
SHORT_RUN: dict[str, Any] = {
    "model": "random:gpt2-tiny", "device": "cpu", "engines": "roseinfer", "request_rate": "20",
    "input_len": 16, "output_len": 4, "warmup": 2, "calibrate": False, "check_answers": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(integration: None) -> Iterator[Any]:
    """Three nodes of one CPU each, whose address is in RAY_ADDRESS. Other modules do not see them."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        made = Cluster()
        try:
            for _ in range(3):
                made.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()
