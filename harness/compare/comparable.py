"""Differences of two runs in anything but what is compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from harness.compare.stored_run import StoredRun
from harness.metrics.digits import digits
from harness.metrics.token_notices import differ_in_work, mean_tokens
from harness.schema.compare_results import Obstacle
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import RUNNING_SERVER
from harness.telemetry.machine import hardware

#: What must be alike, by the name that --allow-different takes. Cells and engines are checked apart.
_EVERY: dict[str, Callable[[StoredRun], object]] = {
    "model": lambda run: run.settings.model,
    "dtype": lambda run: run.settings.dtype,
    "hardware": lambda run: hardware(run.settings.device, run.info.environment),
    "cpu-threads": lambda run: run.settings.cpu_threads,
    "tensor-parallel-size": lambda run: run.settings.tensor_parallel_size,
    "data-parallel-size": lambda run: run.settings.data_parallel_size,
    "max-running-requests": lambda run: run.settings.max_running_requests,
    "gpu-memory-utilization": lambda run: run.settings.gpu_memory_utilization,
    "prefix-cache": lambda run: run.settings.prefix_cache,
    "warmup": lambda run: run.settings.warmup,
    "duration": lambda run: [run.settings.settle, run.settings.min_duration],
}
_ONLINE: dict[str, Callable[[StoredRun], object]] = {
    "trace": lambda run: _trace(run, "sha256") or [_trace(run, "name"), _origin(run)],
    "fit": lambda run: _trace(run, "fit"),
    "lengths": lambda run: _lengths(run) | _limits(run),
    "prompts": lambda run: "text" if run.settings.text_prompts else "token ids",
    "endpoint": lambda run: run.settings.endpoint,
    "mix": lambda run: [run.settings.lora, run.settings.response_format, run.settings.response_format_share],
    "slo": lambda run: run.settings.slo and run.settings.slo.model_dump(exclude_none=True),
    "window": lambda run: run.settings.steady_state or (run.settings.window and str(run.settings.window)),
}
_OF_BATCH: dict[str, Callable[[StoredRun], object]] = {
    "lengths": lambda run: _given_lengths(run.settings) | _limits(run),
    "prompts": lambda run: [run.settings.seed, run.settings.vocab_size],
}
#: Those that count where one of the runs has them: kept histories have their hash without.
_IF_SET: dict[str, Callable[[StoredRun], object]] = {
    "sampling": lambda run: run.settings.sampling,
    "body": lambda run: run.settings.body,
    "shared-prefixes": lambda run: run.settings.shared_prefixes,
    "same-prompts": lambda run: run.settings.same_prompts,
    "content-field": lambda run: run.settings.content_field,
}
#: The settings of which a list is the values; kept histories have their hash as lists.
_SETTINGS = {
    "mix": ("lora", "response-format", "response-format-share"),
    "duration": ("settle", "min-duration"),
    "prompts": ("seed", "vocab-size"),
}
_TOKENS = ("input tokens", "output tokens")
#: The setting of each kind of load.
_LOAD_OPTIONS = {
    "trace": "scales",
    "closed_loop": "concurrency",
    "rate": "request-rate",
    "ramp": "ramp",
    "series": "rate-series",
}
#: That of a batch: runs of other batches have no load in common, so nothing allows it.
_BATCH = "num-prompts"
_OTHERS = (
    "served-model",
    "configuration",
    "requests",
    *_LOAD_OPTIONS.values(),
    "engines",
    "repeats",
    "invalid",
)
#: What --allow-different takes.
NAMES = tuple(dict.fromkeys((*_EVERY, *_ONLINE, *_OF_BATCH, *_IF_SET, *_OTHERS)))


def alike(run: StoredRun) -> dict[str, object]:
    """Return the values that another run must have alike, by name."""
    values = {name: value(run) for name, value in _EVERY.items()}
    others = _OF_BATCH if run.is_batch else _ONLINE
    values |= {name: value(run) for name, value in others.items()}
    return values | {name: setting for name, value in _IF_SET.items() if (setting := value(run))}


def obstacles(
    a: StoredRun, b: StoredRun, pairs: Sequence[tuple[str, str]], allowed: Sequence[str], every: bool
) -> list[Obstacle]:
    """Every way in which the runs do not measure the same; those named in `allowed` are marked.

    Where the runs have no engine or no load in common, nothing allows them.

    Args:
        pairs: Labels in A and in B of the engines that are compared; empty where the runs share none.
        every: All engines are meant to be compared: one that only one run has is an obstacle.
    """
    of_a, of_b = alike(a), alike(b)
    values = [(name, of_a.get(name), of_b.get(name)) for name in {**of_a, **of_b}]
    texts: dict[str, tuple[object, object]] = {"lengths": (_said_lengths(a, of_a), _said_lengths(b, of_b))}
    if not a.is_batch:
        values.append(("requests", *_requests(a, b)))
        texts["trace"] = _said_trace(a), _said_trace(b)
    else:
        values.append((_BATCH, a.settings.num_prompts, b.settings.num_prompts))
    differences = [
        (name, _differing(name, *texts.get(name, differ)))
        for name, *differ in values
        if differ[0] != differ[1]
    ]
    if every and list(a.cells) != list(b.cells):
        only = [f"only A has {label}" for label in a.cells if label not in b.cells]
        only += [f"only B has {label}" for label in b.cells if label not in a.cells]
        differences += [("engines", reason) for reason in only]
    if not a.is_batch and pairs and not any(set(a.cells[in_a]) & set(b.cells[in_b]) for in_a, in_b in pairs):
        differences.append(("loads", "no engine has a load that is in both runs"))
    for in_a, in_b in pairs:
        loads_a, loads_b = sorted(a.cells[in_a]), sorted(b.cells[in_b])
        if loads_a != loads_b and (name := _LOAD_OPTIONS.get(a.loads[0].kind)):
            reason = f"{in_a} has {_listed(loads_a)} in A, {in_b} has {_listed(loads_b)} in B"
            differences.append((name, reason))
        models = served_model(a, in_a), served_model(b, in_b)
        if a.path != b.path and None not in models and models[0] != models[1]:
            differences.append(
                ("served-model", f"{in_a} serves {models[0]} in A, {in_b} serves {models[1]} in B")
            )
        drawn = configuration(a, in_a), configuration(b, in_b)
        if in_a == in_b and drawn[0] != drawn[1]:  # two tunings give their configurations the same labels
            reason = f"{in_a} is {_text(drawn[0])} in A, {_text(drawn[1])} in B"
            differences.append(("configuration", reason))
        ends = answers_end(a, in_a), answers_end(b, in_b)
        if None not in ends and ends[0] != ends[1]:
            reason = f"answers of {in_a} in A end {ends[0]}, those of {in_b} in B {ends[1]}"
            differences.append(("lengths", reason))
        sent = prompts_sent(a, in_a), prompts_sent(b, in_b)
        if set(sent) == {"text", "token ids"}:
            reason = f"prompts of {in_a} in A are sent as {sent[0]}, those of {in_b} in B as {sent[1]}"
            differences.append(("prompts", reason))
        for load in sorted(set(loads_a) & set(loads_b)):
            means_b = mean_tokens(b.cells[in_b][load])
            for items, tokens in mean_tokens(a.cells[in_a][load]).items():
                if differ_in_work(tokens, means_b[items]):
                    there = f"those of {in_b} in B {digits(means_b[items])} ({load})"
                    reason = f"{items} of {in_a} in A have {digits(tokens)} tokens in the mean, {there}"
                    differences.append(("lengths", reason))
        for side, run, label in (("A", a, in_a), ("B", b, in_b)):
            differences += [("repeats", f"{side}: {reason}") for reason in run.missing(label)]
            differences += [("invalid", f"{side}: {reason}") for reason in run.invalid(label)]
    return [
        Obstacle(name=name, reason=reason, allowed=name in allowed and bool(pairs))
        for name, reason in differences
    ]


def served_model(run: StoredRun, label: str) -> object:
    """The model of a running server; None of an engine that was started for the run."""
    launches = (
        launch for launch in run.info.launches if (launch.engine, launch.label) == (RUNNING_SERVER, label)
    )
    return next((launch.settings.get("model") for launch in launches), None)


def configuration(run: StoredRun, label: str) -> object:
    """Return the settings that a tuning chose for an engine, and its variant; None if it left the engine as
    it is."""
    plan = run.info.tune
    if plan is None:
        return None
    drawn = {it.label: it.settings for it in plan.configurations if it.settings}
    return {"base": plan.base, **drawn[label]} if label in drawn else None


def answers_end(run: StoredRun, label: str) -> object:
    """Return where the answers of an engine end, as its server takes it; None: not known."""
    return _found(run, label, "answers")


def prompts_sent(run: StoredRun, label: str) -> str:
    """Return what the prompts of an engine are: `text`, `token ids`, `chat`; `None`: not known."""
    return str(_found(run, label, "prompts")).partition(",")[0]


def _found(run: StoredRun, label: str, fact_name: str) -> object:
    facts = (launch.facts.get(fact_name) for launch in run.info.launches if launch.label == label)
    return next((fact.value for fact in facts if fact is not None), None)


def _trace(run: StoredRun, field: str) -> object:
    return None if run.info.trace is None else getattr(run.info.trace, field)


def _origin(run: StoredRun) -> object:
    """Return the origin of a trace; of another load it is lengths and loads, which are looked at apart."""
    return _trace(run, "origin") if run.settings.loads[0].kind == "trace" else None


def _said_trace(run: StoredRun) -> str | None:
    """A trace's name and the beginning of its hash, which tells apart traces of one name."""
    if (trace := run.info.trace) is None:
        return None
    return f"{trace.name} ({trace.sha256[:8]})" if trace.sha256 else trace.name


def _lengths(run: StoredRun) -> dict[str, object]:
    """Tokens of a trace's requests in all, and of each that is synthetic; what cuts those of a dataset or a
    mixture, where it is set."""
    settings = run.settings
    if settings.loads[0].kind == "trace":
        return {name: _trace(run, name.replace(" ", "_")) for name in _TOKENS}
    cut = {name: getattr(settings, name) for name in ("max_output_len", "turns", "max_think_s")}
    return _given_lengths(settings) | {k: v for k, v in cut.items() if v is not None}


def _given_lengths(settings: OnlineSettings) -> dict[str, object]:
    both = settings.input_len, settings.output_len
    lengths = [length if isinstance(length, int) else str(length) for length in both]
    return dict(zip(_TOKENS, lengths, strict=True))


def _limits(run: StoredRun) -> dict[str, object]:
    return {"context": run.settings.max_model_len, "ignore_eos": run.settings.ignore_eos}


def _said_lengths(run: StoredRun, values: Mapping[str, object]) -> dict[str, object]:
    """The lengths of `alike`, with what their tokens are of: `1,024 each`, `379,875 in all`."""
    lengths = values["lengths"]
    assert isinstance(lengths, dict)
    texts = dict(lengths)
    of = "in all" if run.settings.loads[0].kind == "trace" else "each"
    for key in _TOKENS:
        if (tokens := texts.get(key)) is not None:
            texts[key] = f"{tokens:,} {of}" if isinstance(tokens, int) else f"{tokens} {of}"
    return texts


def _requests(a: StoredRun, b: StoredRun) -> tuple[object, object]:
    """Return the requests of traces; else those at each load of both: how many arrive at a rate is chance."""
    if any(run.settings.loads[0].kind == "trace" for run in (a, b)):
        return _trace(a, "requests"), _trace(b, "requests")
    common = [load for load in a.settings.loads if load in b.settings.loads]
    of_a, of_b = ({str(load): run.settings.requests(load) for load in common} for run in (a, b))
    return of_a, of_b


def _listed(loads: Sequence[Load]) -> str:
    return ", ".join(map(str, loads))


def _differing(name: str, of_a: object, of_b: object) -> str:
    """Say what differs; of a mapping, of several settings or of hardware, only those that do."""
    differ = f"{name} {'differ' if name.endswith('s') else 'differs'}"
    if isinstance(of_a, list) and isinstance(of_b, list) and name == "hardware":
        of_a, of_b = _hardware_parts(of_a), _hardware_parts(of_b)
    if isinstance(of_a, list) and isinstance(of_b, list) and name in _SETTINGS:
        of_a, of_b = (dict(zip(_SETTINGS[name], of, strict=True)) for of in (of_a, of_b))
    if not (isinstance(of_a, Mapping) and isinstance(of_b, Mapping)):
        return f"{differ}: A has {_text(of_a)}, B has {_text(of_b)}"
    keys = [key for key in {**of_a, **of_b} if of_a.get(key) != of_b.get(key)]
    parts = [f"{key}: {_text(of_a.get(key))} in A, {_text(of_b.get(key))} in B" for key in keys]
    return f"{differ}: {'; '.join(parts)}"


def _hardware_parts(found: Sequence[object]) -> dict[str, object]:
    """Return the parts of `harness.telemetry.machine.hardware` by name."""
    device, cpu, cores, *gpus = found
    return {"device": device, "CPU": cpu, "cores": cores, "GPUs": ", ".join(map(str, gpus)) or "none"}


def _text(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, default=str)
