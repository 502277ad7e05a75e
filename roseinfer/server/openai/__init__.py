"""OpenAI's API: bodies in and out, requests made valid, errors, streamed and whole completions."""
