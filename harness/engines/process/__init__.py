"""Engines as processes: started, supervised, and ended whatever happens to the harness."""
