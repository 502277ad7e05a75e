"""What passed through an engine, and in how much time: all that rates are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import prompt_tokens, succeeded
from harness.metrics.gaps import run_starts
from harness.metrics.samples import Group
from harness.metrics.window import in_flight, inside, scheduled
from harness.schema.limits import Slo
from harness.schema.metric import MS
from harness.schema.setting_types import Window

#: Shorter than any clock can measure.
NO_TIME_S = 1e-9


@dataclass(frozen=True)
class Flow:
    """Sums over the measured time of one repeat, or of several.

    Attributes:
        seconds: from the first scheduled arrival to the last end of a stream, or of the window.
        ended: successful requests that ended in it.
        good: those of them that meet the service level; None without one.
        prompt_tokens: theirs.
        output_tokens: that arrived in it, of successful requests.
    """

    seconds: float
    ended: int
    good: int | None
    prompt_tokens: int
    output_tokens: int

    def per_s(self, count: int) -> float:
        """A rate; 0 where no time passed."""
        return count / self.seconds if self.seconds > NO_TIME_S else 0.0


def flow(group: Group, slo: Slo | None) -> Flow:
    """The sums of one repeat.

    With a window, requests and tokens count when they end or arrive inside it, whenever they were sent: a
    server that falls behind does not look as fast as its load.
    """
    whole = group.whole or group
    good = whole.good
    ended = np.ones(len(good), dtype=bool)
    tokens, seconds = int(good["completion_tokens"].sum()), duration_s(whole.requests)
    if group.window is not None:
        seconds = group.window.end_s - group.window.start_s
        ended = inside(good["t_end"], group.window).to_numpy(dtype=bool)
        tokens = _arrived(whole, good, group.window)
    return Flow(
        seconds=seconds,
        ended=int(ended.sum()),
        good=None if slo is None else int((meets(whole, slo) & ended).sum()),
        prompt_tokens=int(prompt_tokens(good)[ended].sum()),
        output_tokens=tokens,
    )


def total(flows: Sequence[Flow]) -> Flow:
    """The sums of several repeats."""
    goods = [flow.good for flow in flows if flow.good is not None]
    return Flow(
        seconds=math.fsum(flow.seconds for flow in flows),
        ended=sum(flow.ended for flow in flows),
        good=sum(goods) if len(goods) == len(flows) else None,
        prompt_tokens=sum(flow.prompt_tokens for flow in flows),
        output_tokens=sum(flow.output_tokens for flow in flows),
    )


def duration_s(requests: pd.DataFrame) -> float:
    """First scheduled arrival (first send without a schedule) to the last end of a stream; 0 without one."""
    end, start = requests["t_end"].max(), scheduled(requests).min()
    return max(0.0, float(end - start)) if np.isfinite(end) and np.isfinite(start) else 0.0


def peak_in_flight(requests: pd.DataFrame) -> int:
    """The most requests of one cell that were sent and not ended at once: one that ends as another is sent
    makes room for it."""
    return int(in_flight(requests, requests["t_sent"].dropna().to_numpy(np.float64)).max(initial=0))


def meets(group: Group, slo: Slo) -> npt.NDArray[np.bool_]:
    """(U,) which successes meet every limit; `itl_ms` limits every token.

    An answer of one token has no time between tokens, and meets a limit on it. Any other without a value was
    not seen to: all of it came at one moment, or nothing but reasoning did.
    """
    requests = group.good
    one_token = requests["completion_tokens"].to_numpy(np.float64) < 2
    good = np.ones(len(requests), dtype=bool)
    for name, limit in slo.model_dump(exclude_none=True).items():
        sample = group.sample(name)
        met = one_token & (name != "ttfo_ms")
        met[sample.request] = True
        met[sample.request[sample.values > limit]] = False
        good &= met
    return good


def requests_within(group: Group, slo: Slo) -> npt.NDArray[np.float64]:
    """(requests,) 1 where a request met every limit, in the order of the table; one that failed did not."""
    within = np.zeros(len(group.requests))
    within[succeeded(group.requests)] = meets(group, slo)
    return within


def _arrived(group: Group, good: pd.DataFrame, window: Window) -> int:
    """Tokens of the successes that came in the window. Rounding in the sum of the gaps puts no chunk after
    the last one."""
    first, last = (good[name].to_numpy(np.float64) for name in ("t_first", "t_last"))
    gaps = group.gaps
    elapsed = np.cumsum(gaps.gap_ms)
    starts = run_starts(gaps.request)
    before = np.repeat(elapsed[starts] - gaps.gap_ms[starts], np.diff(starts, append=gaps.request.size))
    later = np.minimum(first[gaps.request] + (elapsed - before) / MS, last[gaps.request])
    in_first = group.first_chunks[inside(pd.Series(first), window)].sum()
    return int(in_first) + int(gaps.tokens[inside(pd.Series(later), window)].sum())
