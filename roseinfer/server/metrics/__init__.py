"""Counters and histograms, and their exposition on `/metrics`."""
