"""One file an engine: what it is started with, what it is sent, what it reports."""
