"""When to launch the next step: shortly before the one on the device ends, so that it has every request that
came until then."""

from __future__ import annotations

from collections import defaultdict, deque

from roseinfer.batch import Batch

#: How many durations are kept of each kind of step, and of launches; how many are needed to rely on them.
RECENT, FEWEST = 16, 3
#: Bounds of the reserve, in seconds. A launch begins before the step on the device is expected to end: by
#: twice the longest recent launch, and the reserve. This doubles whenever the device had to wait, and shrinks
#: by a hundredth with every other launch.
LEAST, MOST = 3e-4, 1e-2
#: Most seconds that a launch waits.
LONGEST = 0.1
#: Steps are of one kind where their prompt rows, and their decode rows, round up to the same multiple of
#: these.
_PROMPT_ROWS, _DECODE_ROWS = 128, 8

Kind = tuple[int, int]


class Pace:
    """Estimates from recent steps how long the next one takes at least, in seconds.

    The bound of a kind is the shortest of its recent durations, or less where a later step with more rows was
    faster. A step takes at least the largest bound of its kind and of kinds with fewer rows.
    """

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
