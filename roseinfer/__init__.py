"""roseinfer: an LLM serving engine in PyTorch, every feature with a switch."""

__version__ = "0.2.0"
