"""Servers that somebody else started: where they are, what they serve, and what they take."""
