"""`bench tune`: the settings of one engine that are better than its defaults."""
