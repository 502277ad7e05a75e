"""Requests as every part of the engine knows them: how they sample, how they end, their logprobs."""
