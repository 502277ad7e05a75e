"""Facts: what metrics and runs state about a run, as a kind, a scope and named values.

A fact has no sentence. `harness/report/wording.py` has the words, a row for each kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from harness.schema.base import Strict
from harness.schema.load import Load

Value = float | int | str | bool

#: Names of the values of every kind; a fact may lack those that its sentence does without. Text and truth
#: values name what the fact is of, so facts merge only where these are equal; numbers measure it and merge to
#: ranges. The name says the unit: `_ms`, `_s`, `_mhz`; `share` and `possible` are fractions of 1.
KINDS: dict[str, tuple[str, ...]] = {
    # --- of a cell that is invalid
    # No request was sent in the part of the cell that is measured.
    "unmeasured": (),
    # No request succeeded; `first` is the error of the first one.
    "no_success": ("first",),
    # Some requests failed; `first` is the error of the first one, `stopped` were not sent any more.
    "failures": ("failed", "requests", "first", "stopped"),
    # The client, or the node `node`, sent requests late; older results have `opening`.
    "late": ("node", "statistic", "late", "requests", "lag_ms", "limit_ms", "opening"),
    # A client process took more `unit` a second than half of what it can; `clients` would do.
    "busy": ("unit", "per_s", "ceiling_per_s", "clients"),
    # Requests of the answer check failed; `detail` is the first error.
    "failed_answers": ("failed", "answers", "detail"),
    # Answers differ from the reference; the first by token `position` after `prompt_tokens`, or `ended`
    # there.
    "wrong_answers": ("wrong", "answers", "prompt_tokens", "position", "ended"),
    # The engine scores so far below `other` in the accuracy task that it is invalid.
    "inaccurate": ("right", "items", "failed", "other", "other_right", "other_failed", "p"),
    # Of the tool calls in answers that ended by themselves, many fit no schema of a tool that was offered.
    "invalid_calls": ("wrong", "calls"),
    # --- of a cell that is valid, or of its repeats together
    # Some do not, as models err.
    "some_invalid_calls": ("wrong", "calls"),
    # The engine answered fewer requests/s than were offered.
    "behind": ("offered", "answered"),
    # The engine fell behind, and no token came until all requests had arrived.
    "stalled": ("offered", "answered", "stalled_s"),
    # Requests in flight grew within the cell.
    "growing": ("before", "after", "moment_s"),
    # `metric`, or requests in flight without one, changed within the cell.
    "drift": ("metric", "before", "after", "moment_s"),
    # Other processes kept cores busy.
    "foreign_load": ("cores", "most", "of"),
    # The hypervisor took a share of the CPUs' time.
    "stolen_time": ("share",),
    # A GPU was busy before the engine was started.
    "gpu_in_use": ("gpu", "share"),
    # The CPUs ran slower in one repeat than in another.
    "slower_clock": ("low_mhz", "high_mhz"),
    # A GPU lowered its clocks to keep to its power limit.
    "power_capped": ("gpu", "share"),
    # A GPU lowered its clocks for another `reason`.
    "throttled": ("gpu", "reason", "share"),
    # Repeats' medians of `metric` are far apart.
    "repeats_differ": ("metric", "low", "high"),
    # Tokens of a share of the answers were not counted one by one; the count may be `factor` times too high,
    # or `thought_factor` times too low, as without the reasoning that is shown.
    "inferred": ("share", "factor", "thought_factor"),
    # Tokens of a share of the answers are those that the tokenizer finds, as the server reports none; of
    # `checked`, which does, it finds `off` too many or few.
    "estimated": ("share", "off", "checked"),
    # By the model's tokenizer the text has `found` tokens and not `counted`: `factor` times as many or few.
    "miscounted": ("counted", "found", "factor"),
    # A share of the answers has more tokens than were asked for at most, up to so many `times` as many.
    "over_limit": ("share", "times"),
    # A share of the answers has a chunk with text more than tokens: TTFT p50 may be up to `ttft_high_ms`.
    "extra_chunk": ("share", "ttft_ms", "ttft_high_ms"),
    # Text in `fields` of deltas, in a share of the answers, was not read.
    "unread_fields": ("fields", "share"),
    # A share of the answers of a cell names `named`, others the model that was asked for, or another one.
    "other_model": ("named", "share"),
    # All answers name `named` and not the model that was asked for.
    "named_otherwise": ("named",),
    # The engine's own times are left out: in a share of the answers a part was longer than TTFT.
    "impossible_times": ("share",),
    # The server closed the connection of `resent` requests unanswered, and they were sent again.
    "resent": ("resent", "requests"),
    # Requests failed, no more than are tolerated: each counts as slower than all others.
    "tolerated": ("failed", "requests", "first"),
    # Requests were sent again after a failure that may pass, `tries` times in all; TTFT from the first time
    # on, and from the last.
    "retried": ("retried", "requests", "tries", "p50_ms", "last_p50_ms", "p99_ms", "last_p99_ms"),
    # New connections took long to open.
    "slow_connect": ("slow", "requests", "most_ms", "limit_ms"),
    # Neither the server nor a tokenizer counts prompt tokens.
    "uncounted_prompts": (),
    # By the server's count, prompts have so many tokens in the mean, and not those that were `planned`.
    "other_prompts": ("tokens", "planned"),
    # Responses went on for `end_ms` after their last token (median), of an E2E p50 of `e2e_ms`.
    "late_end": ("end_ms", "e2e_ms"),
    # Reasoning was counted and not sent.
    "hidden": ("hidden", "tokens"),
    # Half of the tokens came in chunks of `usual` or more, or half of the answers began with `first`: then
    # TTFT p50 is at least `ttft_low_ms`.
    "large_chunks": ("usual", "first", "tokens_per_step", "icl_ms", "ttft_ms", "ttft_low_ms"),
    # The first `requests` of a closed loop, sent at once, have most of the slowest first tokens.
    "opening": ("requests", "ttft_p90_ms", "ttft_p99_ms", "later_p90_ms", "later_p99_ms"),
    # Turns of sessions were sent late, as the answers before them had not ended.
    "turns_waited": ("late", "turns"),
    # A closed loop has few requests for each in flight.
    "few_rounds": ("requests",),
    # A cell was measured for few seconds, or fewer than asked for.
    "brief": ("seconds", "wanted_s"),
    # More prompt tokens came from a cache than were sent before; without `possible`, that is unknown.
    "cached": ("share", "possible"),
    # Far fewer prompt tokens came from a cache than were sent before.
    "few_hits": ("share", "possible"),
    # The server's counters of its cache grew by `excess` times what was sent.
    "foreign_counters": ("excess",),
    # Requests were preempted in a share of the time; TTFT and TPOT were so many times as long meanwhile.
    "preempted": ("preemptions", "share", "ttft_times", "tpot_times"),
    # The KV cache was full in a share of the time.
    "full_cache": ("share", "ttft_times", "tpot_times"),
    # The server had requests of others in a share of the time, `before` of them before the first was sent.
    "others_requests": ("most", "share", "before", "ttft_times", "tpot_times"),
    # The run has a preset of this version, all as there, or with settings other than there.
    "conforms": ("name", "version", "digest"),
    "deviates": ("name", "version", "digest", "deviations"),
    # The engine drafts tokens, and the prompts are random.
    "random_drafts": ("tokens_per_step",),
    # The model has so many experts in a layer, and the prompts are random.
    "random_experts": ("experts",),
    # The server does not report prompt tokens from a cache.
    "unreported": (),
    # Prompts that came again had their first token sooner, and no cached tokens were reported.
    "hidden_cache": ("first_ms", "again_ms", "prompts"),
    # TTFT p50 is above that at the heavier load `heavier`; `waiting`: prompts that waited meanwhile.
    "slower_when_lighter": ("heavier", "ttft_ms", "heavier_ttft_ms", "waiting", "heavier_waiting"),
    # Prompts or answers (`items`) have fewer tokens in the mean than those of `other` at the same load.
    "less_work": ("items", "tokens", "other", "other_tokens"),
    # The engine scores below `other` in the accuracy task, by little.
    "less_accurate": ("right", "items", "failed", "other", "other_right", "other_failed", "p"),
    # The client, or the node `node`, sent one of few requests late.
    "one_late": ("node", "lag_ms", "limit_ms"),
    # The client, or the node `node`, was late by at most a tenth of the smallest difference that is claimed.
    "harmless_lag": ("node", "lag_ms", "limit_ms", "difference_ms"),
    # The cell was measured again so many times, as the client was late by `lag_ms`.
    "measured_again": ("times", "lag_ms"),
    # Tokens were drawn at random; `checked`: the answers of the check were greedy all the same.
    "sampled": ("sampling", "checked"),
    # Nothing is known of `unknown` of `answers` answers; `detail` is the first reason.
    "unchecked_answers": ("unknown", "answers", "detail"),
    # --- of a run
    # Stored results are not those of the raw times; `first` is one of them.
    "stored_differently": ("count", "first"),
    # Later starts of an engine found other code in `folders`.
    "code_changed": ("folders",),
    # Two variants that were to run other code ran the same.
    "same_code": ("other", "folders"),
    # An engine that was measured twice differs from itself.
    "differs_from_itself": (),
    # The user ended the run early; `absent` engines were not measured, `lacking` were not checked; `until`:
    # `cells` is the most that it may have.
    "interrupted": ("measured", "cells", "until", "absent", "lacking", "subcommand"),
    # So did they where each cell decides which come next.
    "interrupted_early": ("measured", "absent", "lacking", "subcommand"),
    # An engine has no result, or none of some cells.
    "skipped": ("reason", "hint"),
    "skipped_cells": ("reason", "hint"),
    # An engine failed after its cells; `checks` are missing.
    "failed_after": ("checks", "reason", "subcommand"),
    # No answer was compared; `option` asked for that.
    "answers_unchecked": ("option", "offline"),
    # A server does not list `model`, it lists `listed`.
    "unlisted_model": ("model", "listed"),
    # A running server does not report its context, and nobody else does.
    "unknown_context": (),
    # An engine does not report what it computes in.
    "unknown_dtype": (),
    # A setting differs between engines; `ample`: a limit that no engine reaches.
    "unequal_setting": ("setting", "reported", "ample"),
    # The client was not calibrated; `option` asked for that.
    "uncalibrated": ("option",),
    # A cell was sent more `items` than `dataset` has.
    "sent_again": ("items", "dataset", "available", "sent"),
    # The prompts of `dataset` are the same in each cell and run, as asked for.
    "same_prompts": ("dataset",),
    # A part of each cell is measured.
    "window": ("steady", "left_out", "requests"),
    # The trace was fitted to the model's context.
    "fitted": ("fit", "dropped", "changed", "requests"),
    # The measured code is in no commit.
    "uncommitted": ("commit",),
    # Few repeats of an engine at a load.
    "few_repeats": ("repeats", "enough"),
    # `repeats` were all that --until could take, and do not find a difference of `effect`.
    "budget_spent": ("effect", "repeats"),
    # Few starts of an engine's server.
    "few_starts": ("starts", "enough"),
}


def _is_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"there is no kind of fact {kind!r}")
    return kind


FactKind = Annotated[str, AfterValidator(_is_kind), Field(json_schema_extra={"enum": sorted(KINDS)})]

#: Kinds that say that something else used the machine, or slowed its CPUs down.
DISTURBING: frozenset[FactKind] = frozenset({"foreign_load", "stolen_time", "gpu_in_use", "slower_clock"})
#: Kinds that say that the latencies of an open loop grew with its length.
FELL_BEHIND: frozenset[FactKind] = frozenset({"behind", "stalled"})


class Scope(Strict):
    """The part of a run that a fact is about. None means all of them; `engine` is a label."""

    model_config = ConfigDict(frozen=True)

    engine: str | None = None
    load: Load | None = None
    repeat: int | None = None


class Fact(Strict):
    """One statement about a run. The names of its values are those of its kind in `KINDS`."""

    model_config = ConfigDict(frozen=True)

    kind: FactKind
    scope: Scope = Scope()
    values: dict[str, Value] = Field({})

    @classmethod
    def of(cls, kind: FactKind, engine: str | None = None, /, **values: Value) -> Fact:
        """State a fact of the whole run, or of an engine of it."""
        return cls(kind=kind, scope=Scope(engine=engine), values=values)

    @model_validator(mode="after")
    def _has_its_names(self) -> Self:
        if unknown := self.values.keys() - set(KINDS[self.kind]):
            raise ValueError(f"a fact {self.kind!r} has no value {min(unknown)!r}")
        return self

    def __str__(self) -> str:
        """Kind and values, as errors name a fact: `failures (failed 3, requests 200)`."""
        values = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.values.items()
        )
        return f"{self.kind} ({values})" if values else self.kind

    def within(self, engine: str | None = None, load: Load | None = None, repeat: int | None = None) -> Fact:
        """Copy the fact into a narrower scope; what it says of its own scope stays."""
        scope = Scope(
            engine=self.scope.engine or engine,
            load=self.scope.load or load,
            repeat=repeat if self.scope.repeat is None else self.scope.repeat,
        )
        return self.model_copy(update={"scope": scope})


class Range(NamedTuple):
    """Lowest and highest value of a number over merged facts."""

    low: float
    high: float


@dataclass(frozen=True)
class Merged:
    """Facts of one kind and load whose text and truth values are alike.

    Attributes:
        facts: those that were merged, in their order.
        values: text and truth values as they are, numbers as ranges.
    """

    kind: FactKind
    load: Load | None
    facts: tuple[Fact, ...]
    values: dict[str, Range | str | bool]

    @property
    def engines(self) -> list[str]:
        """Labels of the engines, each once."""
        return list(dict.fromkeys(fact.scope.engine for fact in self.facts if fact.scope.engine is not None))


def merge(facts: Iterable[Fact]) -> list[Merged]:
    """Merge facts of one kind and load over engines and repeats by their values.

    Facts whose values have other names, or other text or truth values, stay apart. The order is that in
    which each first appears.
    """
    alike: dict[tuple[object, ...], list[Fact]] = {}
    for fact in facts:
        names = tuple(
            (name, value if isinstance(value, str | bool) else None)
            for name, value in sorted(fact.values.items())
        )
        alike.setdefault((fact.kind, fact.scope.load, names), []).append(fact)
    return [_merged(group) for group in alike.values()]


def _merged(facts: list[Fact]) -> Merged:
    values: dict[str, Range | str | bool] = {}
    for name, value in facts[0].values.items():
        if isinstance(value, str | bool):
            values[name] = value
        else:
            numbers = [float(fact.values[name]) for fact in facts]
            values[name] = Range(min(numbers), max(numbers))
    return Merged(facts[0].kind, facts[0].scope.load, tuple(facts), values)
