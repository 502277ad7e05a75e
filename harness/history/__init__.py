"""Results of many runs in one file: trends, and gates against what was measured before."""
