"""OpenAI's API: bodies of requests and responses, validation, errors, whole and streamed completions."""
