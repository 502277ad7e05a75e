"""The requests that run, and the blocks of the KV cache that they hold."""
