"""The two engines of a difference, each with what was profiled of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.schema.profile import Level, ProfileFigures, ProfileRun, Tool

#: A profiled step that differs by more from the benchmark's is not representative.
TOLERANCE = 0.20
#: The first that has figures is taken: torch's know operators, nsys's disturb less.
TOOLS: tuple[Tool, ...] = ("nsys", "torch")


class Profiled:
    """Captures with their figures, by label."""

    def __init__(self, runs: Sequence[ProfileRun], figures: Sequence[ProfileFigures]) -> None:
        self._runs = {(one.label, one.tool): one for one in runs}
        self._figures: Mapping[tuple[str, Tool], ProfileFigures] = {
            (one.label, one.tool): one for one in figures if one.steps
        }

    def pair(self, a: str, b: str) -> tuple[Side, Side] | None:
        """The figures of both engines by the same tool; None where one has none."""
        for tool in TOOLS:
            if (a, tool) in self._figures and (b, tool) in self._figures:
                return self._side(a, tool), self._side(b, tool)
        return None

    def _side(self, label: str, tool: Tool) -> Side:
        return Side(self._runs[label, tool], self._figures[label, tool])


class Side:
    """One engine of a gap."""

    def __init__(self, run: ProfileRun, figures: ProfileFigures) -> None:
        self.run, self.figures = run, figures
        self.decode = figures.steps.get("decode")

    @property
    def level(self) -> Level:
        return self.run.level

    @property
    def prefill_ms(self) -> float:
        """What the steps with prompts in them add to the mean step."""
        return self.figures.step_ms - (self.decode.period_ms if self.decode else 0.0)

    @property
    def prefill_busy_ms(self) -> float:
        """What they add to the mean step's kernels."""
        return self.figures.busy_ms - (self.decode.busy_ms if self.decode else 0.0)

    @property
    def left_ms(self) -> float:
        """What the profiled kernels leave of the benchmark's step."""
        return max(0.0, (self.level.step_ms or 0.0) - self.figures.busy_ms)

    @property
    def deviation(self) -> float | None:
        """Of the profiled step from the benchmark's; None where that is unknown."""
        step_ms = self.level.step_ms
        return None if step_ms is None else self.figures.step_ms / step_ms - 1

    @property
    def representative(self) -> bool:
        return self.deviation is not None and abs(self.deviation) <= TOLERANCE

    @property
    def only_idle_longer(self) -> bool:
        """Whether the profiled step is the longer one, and its kernels alone fit into the benchmark's.

        Within the tolerance: a profile holds its requests in flight, the benchmark's come and go.
        """
        step_ms = self.level.step_ms
        if self.figures.device != "cuda" or step_ms is None:
            return False
        return self.figures.step_ms >= step_ms and self.figures.busy_ms <= (1 + TOLERANCE) * step_ms
