"""Is a comparison fair: the settings of all engines side by side, and the answer check."""
