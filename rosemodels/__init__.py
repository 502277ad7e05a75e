"""Named models as local folders in Hugging Face layout, for the harness and for engines alike.

`random:NAME` has seeded random weights, the same bytes on every machine; `smollm2-135m` has its real ones.
"""

from rosemodels.store import ModelError, folder, names

__all__ = ["ModelError", "folder", "names"]
