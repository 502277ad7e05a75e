"""Named ranges that profilers show."""
