"""The `transformers` command without its prefix cache, run by that environment's own Python.

    python transformers_cli.py serve MODEL …

Continuous batching shares full KV cache blocks between requests that begin with the same tokens. The setting
for that, `ContinuousBatchingConfig.allow_block_sharing`, has no option on the command line."""

import functools
import sys

if __name__ == "__main__":
    from transformers import ContinuousBatchingConfig
    from transformers.cli.transformers import main

    make = ContinuousBatchingConfig.__init__
    ContinuousBatchingConfig.__init__ = functools.partialmethod(make, allow_block_sharing=False)
    sys.argv[0] = "transformers"
    sys.exit(main())
