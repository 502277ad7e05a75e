"""The requests of a run, and when they are sent."""

from harness.workload.planned_requests import Message, PlannedRequest, open_loop, warmup

__all__ = ["Message", "PlannedRequest", "open_loop", "warmup"]
