"""Which requests run, and which blocks of the KV cache they hold."""
