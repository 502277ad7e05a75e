"""The load client measured against a server of known latency: how much it sustains, how well it times."""
