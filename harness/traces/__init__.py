"""Traces of requests: formats, the catalog, the built-in trace, and fitting to a context."""
