"""Whether a comparison is fair: settings side by side, and the same answers."""
