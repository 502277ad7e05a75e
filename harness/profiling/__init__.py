"""The profile stage: a small sample of a benchmark under a profiler, what that says, and the gap explained."""
