"""Every sentence that the program says of a run: a row a kind of fact, and the templates of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.metrics.contrast import MAX_REPEATS, Contrast
from harness.metrics.digits import digits
from harness.metrics.validity import MIN_ROUNDS
from harness.report.grouping import grouped
from harness.report.text.load_words import where
from harness.report.text.numbers import few, plural, several
from harness.schema.compare_results import EFFECTS
from harness.schema.facts import Fact, FactKind, Merged, Range, merge
from harness.schema.limits import ERROR_RATE, GateTerm, is_latency, parse_gate
from harness.schema.metric import MS
from harness.schema.metrics import METRICS, statistic_name
from harness.schema.run_info import Unasked

Severity = Literal["invalid", "warning", "note"]
#: What a notice is about: the badge that holds it.
Topic = Literal["cells", "client", "answers", "repeats", "settings", "run", "load", "machine", "other"]


@dataclass(frozen=True)
class Wording:
    """The words for one kind of fact.

    Attributes:
        topic: the badge that holds it.
        badge: text of that badge, if nothing graver is in it.
        title: `{engines}` are the engines that it is about.
        text: one clause, of the values; numbers are ranges where facts were merged.
        more: a clause after it, where the fact has the value of that name and it is not false or 0.
        hint: what to do about it.
    """

    severity: Severity
    topic: Topic
    badge: str
    title: str
    text: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""


#: Sizes in the metrics of what a server's page says.
_SLOWER = {
    "ttft_times": "; TTFT was then {ttft_times} times as long",
    "tpot_times": "; TPOT was then {tpot_times} times as long",
}
_BELOW = "{right} of {items} items right, {other} {other_right} (p = {p})"
_WRONG_CALLS = "{wrong} of {calls} tool calls of answers that ended by themselves"
_OFFERED = "{offered} requests/s offered, {answered} answered meanwhile"
_LACKS = {
    "absent": "; nothing of {absent}",
    "lacking": "; not checked after its cells: {lacking}",
    "subcommand": ". bench {subcommand} --resume, with the run's folder, does the rest",
}

#: In this order they are shown.
WORDING: dict[FactKind, Wording] = {
    "stored_differently": Wording(
        "invalid", "other", "stored results differ", "The stored results are not those of the raw times.",
        "{count} values of online_results.json differ, first {first}",
        hint="Everything shown here is computed from the raw times.",
    ),
    "unmeasured": Wording(
        "invalid", "cells", "invalid cells", "Nothing was measured of {engines}.",
        "no request was sent in the part that is measured",
    ),
    "no_success": Wording(
        "invalid", "cells", "invalid cells", "No request to {engines} succeeded.",
        "no request succeeded", {"first": "; the first: {first}"},
        hint="The cells are shown, marked as invalid, and not compared.",
    ),
    "failures": Wording(
        "invalid", "cells", "invalid cells", "Requests to {engines} failed.",
        "{failed} of {requests} requests failed",
        {"first": "; the first: {first}", "stopped": "; {stopped} more were not sent"},
        hint="The cells are shown, marked as invalid, and not compared.",
    ),
    "late": Wording(
        "invalid", "client", "client late", "The client sent requests to {engines} late.",
        "{late} of {requests} requests by over {limit_ms} ms ({statistic} submit lag: {lag_ms} ms)",
        {"node": ", sent by node {node}", "opening": "; all of these on new connections"},
        hint="Use a lighter load, or leave the client a core of its own; see whether other programs ran.",
    ),
    "busy": Wording(
        "invalid", "client", "client late", "A client process had too much to do for {engines}.",
        "a client process took {per_s} {unit}/s, above half of the {ceiling_per_s} that it can",
        {"clients": "; --clients {clients} would do"},
    ),
    "failed_answers": Wording(
        "invalid", "answers", "wrong answers", "{engines}: requests of the answer check failed.",
        "{failed} of {answers} failed", {"detail": ": {detail}"},
    ),
    "wrong_answers": Wording(
        "invalid", "answers", "wrong answers", "The answers of {engines} are wrong.",
        "{wrong} of {answers} greedy answers; after a prompt of {prompt_tokens} tokens another token at "
        "position {position}",
        {"ended": " (an end of sequence)"},
    ),
    "inaccurate": Wording(
        "invalid", "answers", "wrong answers", "{engines}: far fewer right items of the accuracy task.",
        _BELOW,
        {"failed": "; {failed} requests failed", "other_failed": "; of {other} {other_failed} failed"},
    ),
    "invalid_calls": Wording(
        "invalid", "answers", "wrong tool calls", "Tool calls of {engines} fit no tool that was offered.",
        _WRONG_CALLS,
        hint="See the engine's parser of tool calls, and `tool_calls` in requests.parquet.",
    ),
    "differs_from_itself": Wording(
        "invalid", "other", "differs from itself", "An engine differs from itself: {engines}.",
        "differences of this size between engines mean nothing on this machine",
    ),
    "code_changed": Wording(
        "invalid", "other", "code changed", "The code of {engines} changed during the run.",
        "later starts found other files in {folders}", hint="Measure again, and change nothing meanwhile.",
    ),
    "interrupted": Wording(
        "warning", "run", "interrupted", "The run was interrupted.",
        "{measured} of {cells} cells are measured",
        {"until": "; --until may need fewer"} | _LACKS,
    ),
    "interrupted_early": Wording(
        "warning", "run", "interrupted", "The run was interrupted.",
        "cells measured: {measured}; which come next depends on them",
        _LACKS,
    ),
    "skipped": Wording(
        "warning", "run", "engines skipped", "Without a result: {engines}.", "{reason}",
        {"hint": ". To include it: {hint}"},
    ),
    "skipped_cells": Wording(
        "warning", "run", "cells skipped", "Cells of {engines} are missing.", "{reason}",
        {"hint": ". To include them: {hint}"},
    ),
    "failed_after": Wording(
        "warning", "answers", "answers unchecked", "After its cells failed: {engines}.", "{reason}",
        {
            "checks": "; missing: {checks}",
            "subcommand": ". bench {subcommand} --resume, with the run's folder, tries it again",
        },
    ),
    "answers_unchecked": Wording(
        "warning", "answers", "answers unchecked", "The answers were not checked.",
        "whether the engines computed the same is not known",
        {
            "option": ", as {option} was given",
            "offline": ". bench offline compares none; bench online with the same engines and model does",
        },
    ),
    "unchecked_answers": Wording(
        "warning", "answers", "answers unchecked", "The answers of {engines} could not be checked.",
        "{unknown} of {answers} answers have nothing to be compared with", {"detail": ": {detail}"},
    ),
    "unlisted_model": Wording(
        "warning", "answers", "model not listed",
        "The server of {engines} does not list the model that was asked for.",
        "it was asked for {model} and lists {listed}: it may answer with another model",
    ),
    "less_accurate": Wording(
        "warning", "answers", "lower score", "A lower score than another engine: {engines}.", _BELOW,
        {"failed": "; {failed} requests failed", "other_failed": "; of {other} {other_failed} failed"},
    ),
    "same_code": Wording(
        "warning", "other", "same code", "{engines} and {other} ran the same code.",
        "their PYTHONPATH differs, the files found in {folders} do not", hint="Check the paths.",
    ),
    "unknown_dtype": Wording(
        "note", "settings", "settings unknown", "Whether settings are equal is not known.",
        "what {engines} computes in is not reported",
        hint="--server-pid reads the command line of a server on this machine.",
    ),
    "unequal_setting": Wording(
        "warning", "settings", "settings differ", "Settings of the engines are not equal.",
        "{setting}: {reported}", {"ample": " (a limit that this load does not reach)"},
    ),
    "less_work": Wording(
        "warning", "load", "unequal work", "The engines did not do the same work.",
        "{items} of {engines} have {tokens} tokens in the mean, those of {other} {other_tokens}",
        hint="Their TTFT, E2E and tokens a second are of other work.",
    ),
    "other_prompts": Wording(
        "warning", "load", "other prompts", "Prompts of {engines} have other lengths than were planned.",
        "the server counts {tokens} tokens in the mean, {planned} were planned",
        hint="It cuts prompts, or their words are not one token each: --tokenizer gives exact lengths.",
    ),
    "behind": Wording(
        "warning", "load", "not all kept up", "{engines} did not keep up with the load.", _OFFERED,
        hint="Latencies measure the queue, and grow with the length of the run.",
    ),
    "stalled": Wording(
        "warning", "load", "not all kept up", "{engines} did not keep up with the load.",
        _OFFERED + "; no token came in the first {stalled_s} s, until all had arrived",
        hint="Latencies measure this wait.",
    ),
    "growing": Wording(
        "warning", "load", "not all kept up", "More and more requests of {engines} were in flight.",
        "{before} in flight (median) before {moment_s} s, {after} after",
    ),
    "foreign_load": Wording(
        "warning", "machine", "machine disturbed", "Other programs ran in cells of {engines}.",
        "other processes kept {cores} of {of} cores busy ({most} at most)", hint="Stop them and run again.",
    ),
    "stolen_time": Wording(
        "warning", "machine", "machine disturbed", "The machine was slowed in cells of {engines}.",
        "the hypervisor took {share} of the CPUs' time",
    ),
    "gpu_in_use": Wording(
        "warning", "machine", "machine disturbed", "A GPU was in use before the start of {engines}.",
        "GPU {gpu} was busy {share} of the time",
    ),
    "slower_clock": Wording(
        "warning", "machine", "machine disturbed", "The CPUs ran slower in a repeat of {engines}.",
        "{low_mhz} MHz in one repeat and {high_mhz} MHz in another",
    ),
    "throttled": Wording(
        "warning", "machine", "GPU clocks lowered", "A GPU lowered its clocks in cells of {engines}.",
        "GPU {gpu} lowered its clocks in {share} of the samples", {"reason": " ({reason})"},
    ),
    "power_capped": Wording(
        "note", "machine", "GPU power-capped", "A GPU kept to its power limit in cells of {engines}.",
        "GPU {gpu} at its power limit in {share} of the samples",
    ),
    "drift": Wording(
        "warning", "other", "changed meanwhile", "Values changed within cells of {engines}.",
        "median {before} before {moment_s} s, {after} after", {"metric": " ({metric}, ms)"},
    ),
    "repeats_differ": Wording(
        "warning", "other", "repeats disagree", "The repeats of {engines} disagree.",
        "the {metric} median is {low} ms in one repeat and {high} ms in another",
    ),
    "cached": Wording(
        "warning", "other", "cached prompts", "{engines} may have answered from a cache.",
        "{share} of the prompt tokens came from a cache",
        {"possible": ", and only {possible} were sent before in this cell"}, hint="TTFT may be too short.",
    ),
    "preempted": Wording(
        "warning", "other", "preempted requests", "{engines} ran out of KV cache.",
        "{preemptions} requests lost their blocks and were computed again, in {share} of the time", _SLOWER,
        hint="Fewer requests in flight, shorter ones, or more memory for the KV cache.",
    ),
    "full_cache": Wording(
        "note", "other", "KV cache full", "The KV cache of {engines} was nearly full.",
        "over 95 % of the cache was in use in {share} of the time", _SLOWER,
    ),
    "others_requests": Wording(
        "warning", "other", "others' requests", "{engines} had requests that this cell did not send.",
        "up to {most} ran or waited, in {share} of the time",
        {"before": "; {before} before the first was sent"} | _SLOWER,
        hint="Measure when nobody else uses the server.",
    ),
    "foreign_counters": Wording(
        "warning", "other", "foreign counters", "The counters of {engines} are not of this load alone.",
        "they grew by {excess} times the prompt tokens that were sent",
        hint="Somebody else uses the server, or its page is that of several replicas in turn. Whether "
        "prompts came from a cache is not known.",
    ),
    "few_hits": Wording(
        "warning", "other", "few prefix hits", "{engines} found few of the prefixes sent before.",
        "{share} of the prompt tokens came from a cache, and {possible} were sent before in this cell",
        hint="Its prefix cache may be off, too small, of large blocks, or of no use for this model.",
    ),
    "conforms": Wording(
        "note", "other", "more notices", "The run conforms to {name} v{version}.",
        "the preset of SHA-256 {digest}…",
    ),
    "deviates": Wording(
        "note", "other", "more notices", "The run deviates from {name} v{version}.",
        "{deviations}; the preset of SHA-256 {digest}…",
    ),
    "random_drafts": Wording(
        "note", "other", "more notices", "{engines} drafted tokens for random prompts.",
        "{tokens_per_step} tokens a step",
        hint="Real text is drafted better or worse, and its experts are others: InferenceX saw 1.18 to 1.68 "
        "tokens a step with synthetic prompts, and 3.84 with real ones. Use --dataset.",
    ),
    "random_experts": Wording(
        "note", "other", "more notices", "Random prompts went through a mixture of experts.",
        "the model has {experts} experts a layer",
        hint="Text is routed otherwise than random tokens: the balance of experts and the speed may differ. "
        "Use --dataset.",
    ),
    "miscounted": Wording(
        "warning", "answers", "tokens miscounted", "{engines} may count tokens wrongly.",
        "the server counts {counted} tokens, the model's tokenizer finds {found} in its text: N, tok/s and "
        "TPOT may be wrong by a factor of {factor}",
    ),
    "over_limit": Wording(
        "warning", "answers", "answers too long", "Answers of {engines} have more tokens than the limit.",
        "{share} of the answers have up to {times} times the tokens asked for: the server ignores the limit, "
        "or counts wrongly",
    ),
    "estimated": Wording(
        "warning", "answers", "tokens estimated", "Tokens of {engines} are estimated.",
        "in {share} of the answers the server counts none: N, tok/s, TPOT and ITL are by the tokenizer",
        {"checked": ", which finds {off} too many or too few in the text of {checked}"},
    ),
    "unread_fields": Wording(
        "warning", "answers", "unread text", "Text of {engines} was not read.",
        "in {share} of the answers there is text in {fields}: TTFT may be too long, and TPOT wrong",
        hint="--content-field with the field's name reads it as reasoning.",
    ),
    "other_model": Wording(
        "warning", "answers", "several models", "More than one model answered for {engines}.",
        "{share} of the answers name {named}, and not the model that was asked for",
    ),
    "resent": Wording(
        "warning", "other", "requests sent again", "{engines} dropped requests unanswered.",
        "{resent} of {requests} requests were sent again, as their connection was closed",
        hint="They count as answered, and their times begin when they were first sent.",
    ),
    "tolerated": Wording(
        "warning", "other", "failed requests", "Requests to {engines} failed, within what is tolerated.",
        "{failed} of {requests} requests failed", {"first": "; the first: {first}"},
        hint="Each counts as slower than all others: percentiles among them have no value, and latencies "
        "neither a mean nor a maximum. Rates count successes.",
    ),
    "retried": Wording(
        "warning", "other", "retried requests", "Requests to {engines} were sent again after failures.",
        "{retried} of {requests} requests, {tries} times in all",
        {
            "p50_ms": "; TTFT p50 is {p50_ms} ms from the first time",
            "last_p50_ms": " and {last_p50_ms} ms from the last",
            "p99_ms": ", p99 {p99_ms} ms",
            "last_p99_ms": " and {last_p99_ms} ms",
        },
        hint="TTFT and E2E begin when a request was first sent, so the pauses are in them.",
    ),
    "slow_connect": Wording(
        "warning", "other", "slow connections", "Connections to {engines} were slow to open.",
        "{slow} of {requests} requests waited over {limit_ms} ms for one, up to {most_ms} ms",
        hint="TTFT does not have this wait, TTFT from schedule does.",
    ),
    "uncommitted": Wording(
        "warning", "run", "uncommitted code", "The measured code was not committed.",
        "it was commit {commit} with changes, so the same code cannot be measured again",
        hint="Commit first, then measure.",
    ),
    "few_repeats": Wording(
        "note", "repeats", "few repeats", "Few repeats of {engines}.",
        "{repeats} at some load; {enough} or more are better",
        hint="--repeats 5 measures how repeats differ.",
    ),
    "budget_spent": Wording(
        "warning", "repeats", "budget spent", "A difference of {effect} may not be found.",
        "{repeats} repeats are not enough on this machine, and --until was to take no more",
        hint="Longer cells, or a higher --repeats or --until-seconds, find smaller differences.",
    ),
    "few_starts": Wording(
        "warning", "repeats", "few starts", "Few starts of {engines}.",
        "{starts}; {enough} or more are better",
        hint="One start does not show how much starts of a server differ. --cells-per-start says after how "
        "many cells it is started again.",
    ),
    "uncalibrated": Wording(
        "note", "client", "client not calibrated", "The client was not calibrated.",
        "whether a load was too much for the client is not known", {"option": ", as {option} was given"},
    ),
    "one_late": Wording(
        "note", "client", "client late once", "The client sent a request to {engines} late.",
        "submit lag {lag_ms} ms, above {limit_ms} ms", {"node": ", by node {node}"},
    ),
    "harmless_lag": Wording(
        "note", "client", "client a little late", "The client sent requests to {engines} a little late.",
        "submit lag {lag_ms} ms, above {limit_ms} ms and at most a tenth of the smallest difference that is "
        "claimed, {difference_ms} ms",
        {"node": ", by node {node}"},
    ),
    "measured_again": Wording(
        "note", "client", "cells measured again", "Cells of {engines} were measured again.",
        "{times} times, as the client was late (submit lag up to {lag_ms} ms); what was measured before does "
        "not count",
    ),
    "sampled": Wording(
        "note", "answers", "sampled answers", "Tokens were drawn at random.",
        "{sampling}: answers differ from run to run, and so may their lengths",
        {
            "checked": "; the check of answers and the accuracy task asked for greedy ones without --body, "
            "and say nothing of how tokens are drawn"
        },
    ),
    "large_chunks": Wording(
        "note", "other", "more notices", "Chunks of {engines} carry several tokens.",
        "when the tokens of a chunk were there is not known",
        {
            "usual": "; half of the tokens came in chunks of {usual} or more",
            "icl_ms": "; ICL p50 is {icl_ms} ms, and a token may have been there as long before its chunk",
            "first": "; half of the answers began with a chunk of {first} or more",
            "ttft_low_ms": ": TTFT p50 is between {ttft_low_ms} and {ttft_ms} ms",
            "tokens_per_step": "; the engine decodes {tokens_per_step} tokens a step",
        },
        hint="TPOT, which divides by the tokens after the first chunk, and E2E are right.",
    ),
    "hidden": Wording(
        "note", "other", "more notices", "Reasoning of {engines} is not sent.",
        "{hidden} of {tokens} output tokens were reasoning that the server counted and did not send",
        hint="They are in no rate, TPOT or ITL, and TTFT includes the time that they took.",
    ),
    "inferred": Wording(
        "note", "other", "more notices", "ITL of {engines} is inferred from the length of the text.",
        "in {share} of the answers the server does not report which chunk carries which tokens",
        {
            "factor": "; in some it counts {factor} times as many tokens as came chunks: if that is wrong, N "
            "and tok/s are as many times too high, and TPOT too low",
            "thought_factor": "; if it leaves out the reasoning that is shown, N and tok/s are "
            "{thought_factor} times too low, and TPOT too high",
        },
    ),
    "late_end": Wording(
        "note", "other", "more notices", "Responses of {engines} end late.",
        "they go on for {end_ms} ms after the last token (median), beside an E2E p50 of {e2e_ms} ms",
        hint="That time is not in E2E. It is in the rates of a closed loop, whose next request waits for it.",
    ),
    "extra_chunk": Wording(
        "note", "other", "more notices", "Answers of {engines} have a chunk more than tokens.",
        "in {share} of the answers; if their first chunk is no token, TTFT p50 is {ttft_high_ms} and not "
        "{ttft_ms} ms",
    ),
    "unknown_context": Wording(
        "note", "other", "more notices", "The context of {engines} is not known.",
        "requests have the lengths asked for, and those that do not fit fail",
        hint="--max-model-len leaves longer ones out.",
    ),
    "named_otherwise": Wording(
        "note", "other", "more notices", "{engines} names its model otherwise than it was asked for.",
        "its answers name {named}",
    ),
    "impossible_times": Wording(
        "note", "other", "more notices", "Times that {engines} reports of itself are left out.",
        "in {share} of the answers the queue or the prefill took longer than TTFT, which is not possible",
    ),
    "uncounted_prompts": Wording(
        "note", "other", "more notices", "Prompt tokens of {engines} are not counted.",
        "total tok/s has none", hint="--tokenizer names the model's tokenizer.",
    ),
    "slower_when_lighter": Wording(
        "note", "other", "more notices", "Slower at a lighter load: {engines}.",
        "TTFT p50 is {ttft_ms} ms, and {heavier_ttft_ms} ms at a heavier load ({heavier})",
        {
            "waiting": "; a prompt waited for its first token together with {waiting} others, there with "
            "{heavier_waiting} (medians)"
        },
    ),
    "unreported": Wording(
        "note", "other", "more notices", "Prompt tokens from a cache are not reported by {engines}.",
        "whether a server had seen some of the prompts before is not known",
    ),
    "some_invalid_calls": Wording(
        "note", "answers", "wrong tool calls", "Some tool calls of {engines} fit no tool that was offered.",
        _WRONG_CALLS,
    ),
    "hidden_cache": Wording(
        "note", "other", "more notices", "Prompts that came again were faster, unreported: {engines}.",
        "{prompts} prompts, each sent twice before the load: TTFT p50 {first_ms} ms, then {again_ms} ms",
        hint="These reports are not believed. What such a server had before, it answers too soon.",
    ),
    "opening": Wording(
        "note", "load", "opening burst", "The first requests are among the slowest: {engines}.",
        "TTFT p90 is {ttft_p90_ms} ms and p99 {ttft_p99_ms} ms; without the first {requests} requests "
        "{later_p90_ms} and {later_p99_ms} ms",
        hint="--settle 30 leaves the beginning out.",
    ),
    "turns_waited": Wording(
        "note", "load", "turns waited", "Later turns waited for earlier ones: {engines}.",
        "{late} of {turns} later turns were due before the answer before them had ended",
        hint="So fewer requests/s were sent than the load asks for; the engine need not be the reason.",
    ),
    "few_rounds": Wording(
        "note", "load", "short or cut cells",
        f"A closed loop has fewer than {MIN_ROUNDS} requests for each in flight.",
        "{requests} requests: most are sent while the load begins or ends",
        hint="--rounds 10 sends ten for each in flight.",
    ),
    "brief": Wording(
        "note", "load", "short or cut cells", "Cells are short.", "measured for {seconds} s",
        {"wanted_s": " instead of the {wanted_s} s asked for: the load has no more requests"},
        hint="For numbers to publish use --settle 30 --min-duration 30.",
    ),
    "window": Wording(
        "note", "load", "short or cut cells", "Only a part of each cell is measured.",
        "{left_out} of {requests} requests were sent before or after it and are not in the latencies",
        {"steady": "; it is the steady state"},
    ),
    "fitted": Wording(
        "note", "load", "trace fitted", "The trace was fitted to the model's context.", "--fit {fit}",
        {
            "dropped": ", {dropped} requests dropped",
            "changed": ", the lengths of {changed} of {requests} changed",
        },
    ),
    "same_prompts": Wording(
        "note", "load", "same prompts", "The same prompts go to each server, in each cell and run.",
        "{dataset} is sent as it is, as --same-prompts was given: a cache may know it from before",
    ),
    "sent_again": Wording(
        "note", "load", "sent more than once", "Some {items} were sent more than once.",
        "{dataset} has {available} that fit, and {sent} were sent to {engines}",
        hint="A prefix cache answers faster what it has seen. Use a larger dataset, or send less.",
    ),
}  # fmt: skip

#: Metrics of the glossary.
EXPLAINED = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
SEVERITIES: tuple[Severity, ...] = ("invalid", "warning", "note")


@dataclass(frozen=True)
class Notice:
    """Facts of one kind in words; without engines of the whole run."""

    kind: FactKind
    title: str
    detail: str
    engines: tuple[str, ...] = ()

    @property
    def wording(self) -> Wording:
        """Row of the kind."""
        return WORDING[self.kind]

    @property
    def severity(self) -> Severity:
        """Severity of the kind."""
        return self.wording.severity


def notices_of(facts: Iterable[Fact]) -> list[Notice]:
    """Put facts into words, one notice a kind, the gravest first."""
    merged = grouped(merge(facts), lambda each: each.kind)
    notices = [_notice(kind, merged[kind]) for kind in WORDING if kind in merged]
    return sorted(notices, key=lambda notice: SEVERITIES.index(notice.severity))


def _notice(kind: FactKind, merged: Sequence[Merged]) -> Notice:
    wording = WORDING[kind]
    engines = list(dict.fromkeys(engine for each in merged for engine in each.engines))
    names = few(engines) if engines else "the engines"
    values = {"engines": names} | _texts(merged[0])
    details = [as_sentence(f"{_place(each, engines)}{fact_text(each)}") for each in merged]
    details += [wording.hint] if wording.hint else []
    return Notice(kind, wording.title.format_map(values), " ".join(dict.fromkeys(details)), tuple(engines))


def _place(merged: Merged, engines: Sequence[str]) -> str:
    """Load, engines and repeats before a clause: `At scale 0.4 (vLLM, 2 repeats): `."""
    repeats = {fact.scope.repeat for fact in merged.facts} - {None}
    names = [few(merged.engines)] if merged.engines and merged.engines != list(engines) else []
    names += [plural(len(repeats), "repeat")] if len(repeats) > 1 else []
    place = where(merged.load) if merged.load is not None else ""
    if names:
        place = f"{place} ({', '.join(names)})" if place else ", ".join(names)
    return f"{place}: " if place else ""


def fact_text(merged: Merged) -> str:
    """Clause of a merged fact, without its place."""
    wording, values = WORDING[merged.kind], _texts(merged)
    values.setdefault("engines", few(merged.engines) if merged.engines else "the engines")
    clauses = [text for name, text in wording.more.items() if _holds(merged.values.get(name))]
    return "".join([wording.text, *clauses]).format_map(values)


def reason_text(reasons: Iterable[Fact]) -> str:
    """Clauses of facts, one after the other, for a remark on a cell."""
    return "; ".join(dict.fromkeys(fact_text(each) for each in merge(reasons)))


def _holds(value: Range | str | bool | None) -> bool:
    return value.high > 0 if isinstance(value, Range) else bool(value)


def _texts(merged: Merged) -> dict[str, str]:
    """Values as they stand in a sentence."""
    return {name: _value_text(name, value) for name, value in merged.values.items()}


def _value_text(name: str, value: Range | str | bool) -> str:
    if isinstance(value, str):
        return METRICS[value].label if name == "metric" and value in METRICS else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    low, high = (_number_text(name, end) for end in value)
    return low if low == high else f"{low.removesuffix(' %') if high.endswith(' %') else low} to {high}"


def _number_text(name: str, value: float) -> str:
    """Write a number as the name of its value asks for: a share as a percentage, others by their digits."""
    if name in ("share", "possible", "effect"):
        return f"{100 * value:.0f} %"
    if name == "off":
        return f"{100 * value:.1f} %"
    if name in ("cores", "most"):
        return f"{value:.2g}"
    if name in ("lag_ms", "limit_ms"):
        return f"{value:.2f}"
    return f"{value:,.0f}" if value == round(value) else digits(value)


def as_sentence(text: str) -> str:
    """Return a clause with a capital and a full stop."""
    text = text.strip()
    end = "" if text[-1:] in (".", "!", "?") else "."
    return f"{text[:1].upper()}{text[1:]}{end}"


#: Sentences of answers: what a run shows, above its ranking. `**` is around what stands out.
ANSWERS = {
    "no_difference": "{place}, no difference is shown between {labels} in {metrics}.",
    "none_valid": "{place}, no result of {labels} is valid: nothing is compared.",
    "by_itself": "Each by itself more than chance, but not among {comparisons}: {better}.",
    "why": "Why: mean {metric} of {shorter} is {ms} ms shorter than of {longer}; the largest part of that is "
    "{part}, {part_ms} ms.",
    "why_more": "Why: mean {metric} of {shorter} is {ms} ms shorter than of {longer}: {part} {part_ms} ms "
    "shorter, the rest {rest_ms} ms longer.",
    "too_few_requests": "{place}, too few requests were measured to compare {metrics}.",
    "alone": "{place}, {label} is the only engine with a valid result: nothing is compared.",
    "nothing_valid": "Nothing is compared: {invalid} of {cells} are invalid.{why}",
    "no_result": "No engine has a result. The notices say why.",
    "no_cell_counts": "No engine has a cell that counts. The table says why.",
    "none_meets": "No engine meets {limits} at the lightest load, {amount}. Loosen the limits.",
    "all_meet": "Every engine meets {limits} at the heaviest load, {amount}. Raise --highest.",
    "carries_most": "Within {limits}, **{label}** carries most: **{amount}** (95 % interval {interval}).",
    "carries": "Within {limits}, {label} carries: **{amount}** (95 % interval {interval}).",
    "carries_unknown": "Within {limits}, {label} carries {amount}, and no more is known, as {why}.",
    "tuned": "**{label}** is better than the default: {objective} {value} instead of {before} ({times}). "
    "Its settings: {settings}.",
    "default_invalid": "No configuration is compared with {label}: cells of it are invalid ({why}).",
    "not_tuned": "No configuration was compared with the default of {label}.{why}",
    "none_better": "No configuration is shown to be better than {label} by {objective}.{but}",
    "but": " {labels} would be, but not within {limits}.",
}


@dataclass(frozen=True)
class Sentence:
    """A sentence of an answer: its parts, each with whether it stands out."""

    marked: tuple[tuple[str, bool], ...]

    def __str__(self) -> str:
        return "".join(part for part, _ in self.marked)


def sentence(kind: str, **values: object) -> Sentence:
    """Fill the sentence of a kind of answer."""
    parts = ANSWERS[kind].split("**")
    return Sentence(tuple((part.format_map(values), place % 2 == 1) for place, part in enumerate(parts)))


def better_in(metric: str, won: Sequence[tuple[str, str, str]], undecided: Sequence[str]) -> str:
    """`TTFT p50 by 8.69× and p90 by 13.07× (no difference shown at p99)`.

    Args:
        won: statistics, each with by how much, or nothing, and than which engines, if not than all.
        undecided: statistics in which no engine is better.
    """

    def alike(pairs: Iterable[tuple[str, str]]) -> list[str]:
        by_text = grouped(pairs, lambda pair: pair[1])
        return [f"{several(name for name, _ in same)} {text}".strip() for text, same in by_text.items()]

    of_rate = {metric: ""}
    than_all = [(of_rate.get(name, name), by) for name, by, engines in won if not engines]
    only = " only" if than_all else ""
    than_some = [(of_rate.get(name, name), f"than {names}{only}") for name, _, names in won if names]
    parts, notes = alike(than_all), alike(than_some)
    joined = several(parts) if parts and len(parts) == len(than_all) else ", and ".join(parts)
    if not than_all and len(notes) == 1:
        joined, notes = several(name for name, _ in than_some), [than_some[0][1]]
    if undecided:
        notes.append(f"no difference shown at {several(undecided)}")
    return " ".join(filter(None, (METRICS[metric].label, joined, f"({'; '.join(notes)})" if notes else "")))


def wins(place: str, better: Mapping[str, Sequence[str]], same: Sequence[str]) -> Sentence:
    """State in what each engine, which stands out, is better, and in what no difference is shown."""
    rest = f"; no difference is shown in {several(same)}." if same else "."
    won = [(label, True, f" is better in {several(phrases)}") for label, phrases in better.items()]
    return _of_each(place, won, rest)


def kept_up(place: str, rates: Sequence[tuple[str, str, bool]]) -> Sentence:
    """State what each engine answered a second, where some of them fell behind."""
    answers = [
        (label, not is_behind, f"{' falls behind and' if is_behind else ''} answers {rate} requests/s")
        for label, rate, is_behind in rates
    ]
    return _of_each(place, answers, ". Latencies are not compared: some measure a queue.")


def _of_each(place: str, said: Sequence[tuple[str, bool, str]], end: str) -> Sentence:
    """Say something of each label, which stands out where that is True."""
    parts = [(f"{place}, ", False)]
    for label, stands_out, words in said:
        between = "; " if len(parts) > 1 else ""
        parts += [(between, False), (label, stands_out), (words, False)]
    return Sentence((*parts, (end, False)))


#: Terms of a report that a reader may not know, and what each means.
GLOSSARY = {
    **{METRICS[name].label: f"{METRICS[name].title}. {METRICS[name].meaning}" for name in EXPLAINED},
    "tok/s": "Tokens that all requests together got in a second.",
    "p50": "Half of the requests (of ITL: of the tokens) are at or below it: the median.",
    "p90": "Nine of ten requests (of ITL: of the tokens) are at or below it.",
    "p99": "99 of 100 requests (of ITL: of the tokens) are at or below it: the slowest ones.",
    "in flight": "Requests that were sent and have not ended: so many users at a time.",
    "scale": "Times between arrivals are those of the trace times this: 0.5 is twice as heavy a load as 1.",
    "no difference": "A difference of this size may be chance. That is no proof that the engines are equal.",
    "by itself": "Its own 95 % interval is without 1. Of a hundred comparisons of equal engines five are so "
    "by chance, so more is asked of each of many. More repeats tell.",
    "falls behind": "Requests come faster than it answers: they wait the longer the longer it runs.",
    "prefill": "The prompt is computed, until its first token.",
    "queue": "A request waits in the engine until its prefill begins.",
}

#: Below a table of engines against a baseline.
COMPARED_NOTE = (
    "Beside each value its ratio to {baseline} with a 95 % interval; better, worse: by more than chance, at "
    "5 % for all {count} comparisons of the run together. An interval without 1 and no such word: more "
    "than chance by itself."
)
WITHHELD_NOTE = "No ratio: too few independent requests."


def repeats_line(contrasts: Iterable[Contrast]) -> str:
    """State how many repeats of each engine find a difference of each size, the most of any load and pair."""
    primary = [each for each in contrasts if each.primary]
    texts = []
    for key, alike in grouped(primary, lambda each: (each.metric, each.statistic)).items():
        most = (max(each.repeats_for(effect) or MAX_REPEATS for each in alike) for effect in EFFECTS.values())
        texts.append(f"{statistic_name(*key)} {' / '.join(map(str, most))}")
    return f"Repeats that find a difference of {' / '.join(EFFECTS)} here: {', '.join(texts)}."


def not_significant(comparisons: int) -> str:
    """Say that a difference's own interval excludes a ratio of 1, but not the corrected one."""
    return f"not significant after correction for {comparisons} comparisons"


#: Checks that an engine is asked after its cells.
CHECKS = {"answers": "second answer check", "accuracy": "accuracy task"}


def lacking(unasked: Unasked) -> str:
    """`vLLM lacks its accuracy task`."""
    if not unasked.what:
        return f"{unasked.label} failed after its cells"
    return f"{unasked.label} lacks {several(f'its {CHECKS[check]}' for check in unasked.what)}"


# --- Limits of a search or a tuning ----------------------------------------------------------------------


def limit_words(limits: str) -> str:
    """`TTFT p99 ≤ 200 ms and TPOT p99 ≤ 30 ms` of `ttft_p99<=200ms,tpot_p99<=30ms`."""
    return several(map(term_words, parse_gate(limits, "limit")))


def term_words(term: GateTerm) -> str:
    """`TTFT p99 ≤ 200 ms`, `output tok/s ≥ 500`."""
    sign = "≤" if term.at_most else "≥"
    if term.metric == ERROR_RATE:
        return f"failed requests {sign} {100 * term.limit:g} %"
    label = METRICS[term.metric].label
    if not is_latency(term):
        return f"{label} {sign} {term.limit:g}"
    value = f"{term.limit:g} ms" if term.limit < MS else f"{term.limit / MS:g} s"
    return f"{label} {term.statistic} {sign} {value}"
