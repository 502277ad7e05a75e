"""What all parts know of a request: sampling parameters, limits, how it ends, its logprobs."""
