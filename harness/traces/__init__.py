"""Traces of requests: readers, the catalog, the built-in one, and fitting to a context."""
