"""A Markdown table of kernels, their lower bounds and what they replace."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = (
    "| | kernel, µs | GB/s | GFLOP/s | floor / kernel | reference, µs | reference / kernel |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)


@dataclass(frozen=True)
class Timed:
    """Seconds of one call of a kernel, and of a reference, if there is one.

    Each call must move `moved` bytes of memory and compute `flops` floating-point operations.
    """

    name: str
    moved: int
    flops: int
    kernel_s: float
    reference_s: float | None

    def row(self, bytes_per_s: float, flops_per_s: float) -> str:
        """A row of the table. `floor` (roofline): the time for the bytes, or the FLOPs if that is longer."""
        floor = max(self.moved / bytes_per_s, self.flops / flops_per_s)
        compared = " | "
        if self.reference_s is not None:
            compared = f"{1e6 * self.reference_s:,.1f} | {self.reference_s / self.kernel_s:.2f}"
        return (
            f"| {self.name} | {1e6 * self.kernel_s:,.1f} | {self.moved / self.kernel_s / 1e9:,.1f} "
            f"| {self.flops / self.kernel_s / 1e9:,.0f} | {floor / self.kernel_s:.2f} | {compared} |"
        )
