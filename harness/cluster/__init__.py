"""The machines of a run: this one, or the nodes of a Ray cluster."""
