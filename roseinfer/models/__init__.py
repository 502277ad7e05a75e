"""Decoder models over flat batches of tokens."""
