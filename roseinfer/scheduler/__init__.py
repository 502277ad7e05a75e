"""Which requests run, and with which blocks of the cache."""
