"""The paged KV cache: its memory, its blocks, and the prefix cache."""
