"""What a published run no longer says of the machine it was measured on."""

from __future__ import annotations

import json

import pytest

from scripts.shrink import without_folders


@pytest.mark.unit
@pytest.mark.parametrize("indent", [None, 2])
def test_paths_begin_at_the_checkout_and_at_home(indent: int | None) -> None:
    run = {
        "argv": ["/a/b/.venv/bin/python", "/a/b/harness/shim.py", "/home/me/.cache/rosebench/models/m-1"],
        "codes": [{"folder": "/a/b/roseinfer"}, {"folder": "/opt/vllm"}],
    }
    assert json.loads(without_folders(json.dumps(run, indent=indent))) == {
        "argv": [".venv/bin/python", "harness/shim.py", "~/.cache/rosebench/models/m-1"],
        "codes": [{"folder": "roseinfer"}, {"folder": "/opt/vllm"}],
    }
