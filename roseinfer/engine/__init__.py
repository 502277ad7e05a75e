"""The engine and the process it runs in."""
