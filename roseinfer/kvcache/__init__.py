"""The paged key-value cache: its memory, its blocks, and which of them hold known prefixes."""
