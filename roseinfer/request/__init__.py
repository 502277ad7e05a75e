"""A request, as all parts see it: sampling parameters, limits, how it ends, its logprobs."""
