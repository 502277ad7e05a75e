"""The profile stage: a sample of a benchmark under a profiler, what that says, and the gap explained."""
