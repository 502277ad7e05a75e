"""How many batches are sent, and by how many client processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runs.batch.measured import Measured
from harness.runs.batch.through_server import _measured


@pytest.mark.parametrize(
    ("min_s", "sent"), [(0.0, [1]), (0.25, [1]), (1.0, [1, 3]), (4.0, [1, 10, 5])], ids=str
)
def test_one_client_process_sends_the_batches_that_are_lacking(min_s: float, sent: list[int]) -> None:
    """Batches of 0.25 s; no client process sends more than ten."""
    calls: list[int] = []

    def send(batches: int) -> Measured:
        calls.append(batches)
        return Measured(0.25 * batches, (1,) * batches, batches)

    measured = _measured(send, min_s, 10)
    assert calls == sent and measured == Measured(0.25 * sum(sent), (1,) * sum(sent), sum(sent))


@given(
    seconds=st.lists(st.floats(0.001, 1), min_size=1, max_size=20),
    min_s=st.floats(0, 10),
    most=st.integers(1, 50),
)
def test_batches_are_sent_until_the_time_is_over(seconds: list[float], min_s: float, most: int) -> None:
    """Whatever a batch takes, the next ones are not what the first one took."""
    calls: list[int] = []

    def send(batches: int) -> Measured:
        calls.append(batches)
        taken = seconds[len(calls) % len(seconds)] * batches
        return Measured(taken, (1,) * batches, batches)

    measured = _measured(send, min_s, most)
    assert measured.total_s >= min_s and max(calls) <= most and measured.batches == sum(calls)
