"""Real prompts and conversations: the built-in dataset, and files of others."""
