"""What is sent and when: prompts of token ids and their schedule."""

from harness.workload.planned_requests import Message, PlannedRequest, closed_loop, open_loop, warmup

__all__ = ["Message", "PlannedRequest", "closed_loop", "open_loop", "warmup"]
