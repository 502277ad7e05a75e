"""Facts of the tokens of cells: which came, how many, when, of which model, and of how much work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import prompt_tokens, run_starts
from harness.metrics.samples import Group, column
from harness.schema.facts import Fact, Value
from harness.schema.load import Load
from harness.schema.results import OnlineSummary

#: Two counts of a cell's tokens that differ by more than this are not of the same text.
COUNT_FACTOR = 1.15


def count_notices(group: Group) -> Iterator[Fact]:
    """State what may be wrong with which tokens came, how many, when, and from which model."""
    good = group.good
    inferred = (good["token_source"] == "inferred").to_numpy()
    tokens, chunks = (good[name].to_numpy(np.float64) for name in ("completion_tokens", "chunks"))
    has_extra = inferred & (tokens == chunks) & (chunks > 1)
    yield from _extra_chunks(group, has_extra)
    yield from _doubtful_counts(group, inferred & ~has_extra)
    times = tokens / good["output_tokens"].to_numpy(np.float64)
    over = (times > COUNT_FACTOR) & (good["token_source"] != "estimated").to_numpy()
    if np.any(over):
        yield Fact.of("over_limit", share=float(over.mean()), times=float(times[over].max()))
    if np.any(estimated := (good["token_source"] == "estimated").to_numpy()):
        yield Fact.of("estimated", share=float(estimated.mean()))
    unread = good["unread_fields"].dropna()
    hidden = int(good["hidden_tokens"].sum())
    if len(unread):
        fields, share = str(unread.mode().iloc[0]), len(unread) / len(good)
        yield Fact.of("unread_fields", fields=fields, share=share)
    elif hidden:
        yield Fact.of("hidden", hidden=hidden, tokens=hidden + int(tokens.sum()))
    yield from other_models(good)
    if group.impossible:
        yield Fact.of("impossible_times", share=group.impossible)
    if len(good) and not prompt_tokens(good).any():
        yield Fact.of("uncounted_prompts")
    of_known = good[good["input_tokens"] > 0]  # a text whose tokens only the server counts has 0
    counted, planned = prompt_tokens(of_known).sum(), of_known["input_tokens"].to_numpy(np.float64).sum()
    if differ_in_work(counted, planned):
        yield Fact.of("other_prompts", tokens=counted / len(of_known), planned=planned / len(of_known))


def _extra_chunks(group: Group, has_extra: npt.NDArray[np.bool_]) -> Iterator[Fact]:
    """State by how much TTFT would be longer if the first chunk of the successes that have one more than
    tokens carries none."""
    if not np.any(has_extra):
        return
    starts = run_starts(group.gaps.request)
    waited = np.zeros(len(group.good))
    waited[group.gaps.request[starts]] = group.gaps.gap_ms[starts]
    ttft_ms = group.metrics["ttft_ms"].to_numpy()
    low, high = np.nanmedian(ttft_ms), np.nanmedian(ttft_ms + np.where(has_extra, waited, 0.0))
    ends = {"ttft_ms": float(low), "ttft_high_ms": float(high)}
    yield Fact.of("extra_chunk", share=float(has_extra.mean()), **ends)


def _doubtful_counts(group: Group, inferred: npt.NDArray[np.bool_]) -> Iterator[Fact]:
    """State that the texts have another number of tokens than was counted, or that times of tokens were
    inferred from chunks. A count that leaves out reasoning has the tokens of the time after it alone."""
    good = group.good
    tokens, chunks = good["completion_tokens"].to_numpy(np.float64), good["chunks"].to_numpy(np.float64)
    text_tokens = column(good, "text_tokens")
    counted = np.isfinite(text_tokens)
    factor = _apart(tokens[counted].sum(), text_tokens[counted].sum())
    if factor > COUNT_FACTOR and (text_tokens[counted].sum() > tokens[counted].sum() or np.any(inferred)):
        sums = {"counted": float(tokens[counted].sum()), "found": float(text_tokens[counted].sum())}
        yield Fact.of("miscounted", **sums, factor=factor)
    elif np.any(inferred):
        values: dict[str, Value] = {"share": float(inferred.mean())}
        unchecked = inferred & ~counted
        if np.any(unchecked):
            values["factor"] = _apart(tokens[unchecked].sum(), chunks[unchecked].sum())
            times = group.metrics[unchecked & (group.metrics["ttfo_ms"] > group.metrics["ttft_ms"])]
            if len(times):
                whole, answers = ((times["e2e_ms"] - times[f"{name}_ms"]).sum() for name in ("ttft", "ttfo"))
                values["thought_factor"] = _apart(whole, answers)
        yield Fact.of("inferred", **values)


def _apart(a: float, b: float) -> float:
    """Return how many times the larger of two counts is the smaller one; 1 where both are 0."""
    return max(a, b) / max(1.0, min(a, b)) if a or b else 1.0


def other_models(good: pd.DataFrame) -> Iterator[Fact]:
    """State that answers name models that were not asked for: some of them, or all of them one."""
    if "other_models" not in good or good["other_models"].isna().all():
        return
    names = good["other_models"].astype(object)
    names = names.where(names != good["adapter"].astype(object), None)
    by_adapter = names.groupby(good["adapter"].astype(object).fillna(""))
    if all(len(of_one.unique()) == 1 for _, of_one in by_adapter):
        named = dict.fromkeys(names.dropna())
        yield from [Fact.of("named_otherwise", named=", ".join(named))] if named else []
    else:
        named = dict.fromkeys(names.dropna().value_counts().index[:3])
        yield Fact.of("other_model", named=", ".join(named), share=float(names.notna().mean()))


def mean_tokens(repeats: Sequence[Group]) -> dict[str, float]:
    """Return the mean tokens of the prompts and of the answers of all successes; 0 without any."""
    good = [group.good for group in repeats]
    answers = [rows["completion_tokens"].to_numpy(np.float64) for rows in good]
    tokens = {"prompts": np.concatenate(list(map(prompt_tokens, good))), "answers": np.concatenate(answers)}
    return {items: float(of_items.mean()) if of_items.size else 0.0 for items, of_items in tokens.items()}


def with_less_work(
    summaries: Iterable[OnlineSummary], repeats: Mapping[tuple[str, Load], Sequence[Group]]
) -> Iterator[OnlineSummary]:
    """Add a fact to the summaries of all repeats whose prompts or answers are shorter than those of another
    engine at that load.

    Args:
        repeats: The cells of each label and load.
    """
    every = list(summaries)
    pooled = [(each.label, each.load) for each in every if each.repeat is None and each.valid]
    means = {place: mean_tokens(repeats[place]) for place in pooled}
    for summary in every:
        shorter = []
        at_load = {label: of for (label, load), of in means.items() if load == summary.load}
        for items, tokens in at_load.get(summary.label, {}).items() if summary.repeat is None else ():
            other = max(at_load, key=lambda label: at_load[label][items])
            if differ_in_work(tokens, most := at_load[other][items]):
                fact = Fact.of(
                    "less_work", summary.label, items=items, tokens=tokens, other=other, other_tokens=most
                )
                shorter.append(fact.within(load=summary.load))
        yield summary.model_copy(update={"notices": [*summary.notices, *shorter]})


def differ_in_work(a: float, b: float) -> bool:
    """Tell whether two mean lengths are known and too far apart for the same work."""
    return 0 < COUNT_FACTOR * min(a, b) < max(a, b)
