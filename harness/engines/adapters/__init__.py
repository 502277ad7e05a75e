"""One file for each engine: how it is started, what it is sent, what it reports."""
