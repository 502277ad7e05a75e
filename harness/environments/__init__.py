"""Environments of engines: made from a package index, or packed for a host that reaches none."""
