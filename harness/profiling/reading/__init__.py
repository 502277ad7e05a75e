"""From the files of a profiler to figures: the same for torch traces and nsys exports of any engine."""
