"""The paged key-value cache: the memory, and who holds which block of it."""
