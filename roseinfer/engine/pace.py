"""When to launch the next step: shortly before the one on the device ends, so that it has every request that
came until then."""

from __future__ import annotations

from collections import defaultdict, deque

from roseinfer.batch import Batch

#: Durations that are kept, of each kind of step and of launches, and how many are needed to rely on them.
RECENT, FEWEST = 16, 3
#: Bounds of the seconds that a launch has beyond twice the longest recent one. They are doubled whenever the
#: device had to wait, and reduced by a hundredth with every other launch.
LEAST, MOST = 3e-4, 1e-2
#: The next launch waits at most so many seconds.
LONGEST = 0.1
#: Rows of prompts, and decode rows, of steps of one kind.
_PROMPT_ROWS, _DECODE_ROWS = 128, 8

Kind = tuple[int, int]


class Pace:
    """Durations of recent steps, in seconds. A step is expected to take at least the least recent duration of
    its kind, or of a kind with fewer rows, which is no more than what any later step with more rows took."""

    def __init__(self) -> None:
        self._took: dict[Kind, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._least: dict[Kind, float] = {}
        self._launches: deque[float] = deque(maxlen=RECENT)
        self._spare = LEAST

    def ended(self, batch: Batch, seconds: float) -> None:
        """A step has taken `seconds` on the device."""
        kind = _kind(batch)
        self._took[kind].append(seconds)
        if len(self._took[kind]) >= FEWEST:
            self._least[kind] = min(self._took[kind])
        for fewer, least in self._least.items():  # a kind that is not seen any more may have become faster
            if least > seconds and fewer[0] <= kind[0] and fewer[1] <= kind[1]:
                self._least[fewer] = seconds

    def launched(self, seconds: float, *, late: bool) -> None:
        """A launch has taken `seconds` on the host. `late`: the device had nothing to do meanwhile."""
        self._launches.append(seconds)
        self._spare = min(MOST, 2 * self._spare) if late else max(LEAST, 0.99 * self._spare)

    def wait_s(self, batch: Batch) -> float:
        """Seconds from the begin of a step to the next launch; 0 where the durations are not known."""
        prompts, decodes = _kind(batch)
        durations = [
            least
            for (fewer_prompts, fewer_decodes), least in self._least.items()
            if fewer_prompts <= prompts and fewer_decodes <= decodes
        ]
        if not durations or len(self._launches) < FEWEST:
            return 0.0
        return max(0.0, min(LONGEST, max(durations) - 2 * max(self._launches) - self._spare))


def _kind(batch: Batch) -> Kind:
    return -(-batch.decode_start // _PROMPT_ROWS), -(-len(batch.decode_lengths) // _DECODE_ROWS)
