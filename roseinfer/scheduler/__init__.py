"""Which requests run, and on which blocks."""
