"""Two finished runs against each other: whether they can be compared, how they differ, what gates say."""
