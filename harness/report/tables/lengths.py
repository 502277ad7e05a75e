"""The table of lengths: what was asked and how long the answers became, engines side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.metrics.digits import per_cent
from harness.metrics.long_frames import compress, concatenate, known, map_parts, numbers
from harness.metrics.percentiles import percentiles
from harness.metrics.samples import Group, by_load
from harness.report.tables.table import Cell, Column, Table, number_cell
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH

_SHOWN = (50, 90, 99)
#: Reasons to finish of an answer that was not cut off at its limit.
_OWN_ENDS = ("stop", "eos_token", "stop_sequence", "tool_calls", "function_call")


def lengths_table(groups: Sequence[Group]) -> Table | None:
    """One row an engine and load, of all repeats; None where every answer of the run has the same length."""
    pooled = [list(repeats) for repeats in by_load(groups)]
    answers = [_column(repeats, "completion_tokens") for repeats in pooled]
    ends = {float(end) for values in answers if values.size for end in (values.min(), values.max())}
    if len(ends) < 2:
        return None
    columns = [Column("engine", numeric=False), Column(head_of(group.load for group in groups))]
    columns += [Column(f"prompt p{q}") for q in _SHOWN]
    columns += [Column("answer mean"), *(Column(f"answer p{q}") for q in _SHOWN), Column("ended by itself")]
    notes = (
        "Tokens of prompts and answers of successful requests. Answers of different lengths are different "
        "work: compare engines by TPOT, ITL and tokens a second.",
    )
    return Table("lengths", "Lengths", columns, [_row(repeats) for repeats in pooled], notes)


def _row(repeats: Sequence[Group]) -> list[Cell]:
    first = repeats[0]
    prompts, answers = _column(repeats, "prompt_tokens"), _column(repeats, "completion_tokens")
    own = sum(int(group.good["finish_reason"].isin(_OWN_ENDS).sum()) for group in repeats)
    count = sum(len(group.good) for group in repeats)
    return [
        Cell(first.label),
        Cell(load_number(first.load), first.load.value),
        *_percentiles(prompts),
        number_cell(float(np.mean(answers)) if len(answers) else None, 1),
        *_percentiles(answers),
        Cell(per_cent(own / count) if count else DASH, own / count if count else None),
    ]


def _percentiles(values: npt.NDArray[np.float64]) -> list[Cell]:
    if not len(values):
        return [Cell(DASH)] * len(_SHOWN)
    return [number_cell(float(found), 0) for found in percentiles(values, None, _SHOWN)]


def _column(repeats: Sequence[Group], name: str) -> npt.NDArray[np.float64]:
    """Of the successes; where a server does not say how long a prompt is, as it was planned."""
    if name != "prompt_tokens":
        return concatenate(known(group.good[name]) for group in repeats)
    both = [(numbers(group.good[name]), numbers(group.good["input_tokens"])) for group in repeats]
    said = [
        map_parts(lambda own, planned: np.where(np.isnan(own), planned, own), *columns) for columns in both
    ]
    return concatenate(compress(np.isfinite(tokens), tokens) for tokens in said)
