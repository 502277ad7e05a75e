"""One file for each engine: how it is started, what it is sent, what it reports."""

from pathlib import Path

_FOLDER = Path(__file__).parent
#: In-process APIs, for an engine's own interpreter.
APIS = _FOLDER / "apis.py"
#: Files for an engine's own interpreter: copied into its environment, or run there instead of its program.
SHIMS = _FOLDER / "shims"
