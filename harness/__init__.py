"""The benchmark: replays request traces against serving engines and reports what it measured."""

__version__ = "0.2.0"
