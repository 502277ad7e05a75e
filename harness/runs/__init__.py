"""Cells of a run, the order in which they are taken, and the run that takes them."""
