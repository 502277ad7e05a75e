"""Engines, machine and load of a run: the lines at the head of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from harness.engines.registry import is_ours
from harness.metrics.digits import digits
from harness.report.text.load_words import load_number
from harness.report.text.numbers import few, percent, plural, several, span
from harness.runs.reader import Run
from harness.schema.load import ClosedLoop, TraceLoad
from harness.schema.machines import gpu_names, with_counts
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import LaunchRecord, RunInfo, TraceRecord
from harness.schema.setting_types import lengths_text
from harness.traces.builtin import NAME as GENERATED
from rosemodels.store import RANDOM

#: Engines that a title names one by one.
MOST_NAMES = 6
_ABOUT = ("Model", "Machine", "Trace", "Load", "Batch", "Engines")


def title(run: Run) -> str:
    """`qwen3-8b bf16 · H200 · SGLang / vLLM`: what was measured, on what, and which engines."""
    measured, engines = title_parts(run)
    return " · ".join(filter(None, (*measured, " / ".join(engines)))) or run.path.name


def title_parts(run: Run) -> tuple[list[str], list[str]]:
    """The model with its type and the GPUs in short, as far as they are known, and the engines that were
    compared, or that were to be."""
    labels = [label for _, label in run.engines] or [fault.label for fault in run.results.skipped]
    settings, launches = run.meta.settings, run.meta.launches
    if (served := _served(launches)) is not None:
        return [" ".join([PurePath(served[0]).name, *served[1:]])] if served else [], names(labels)
    parts = [f"{PurePath(settings.model.removeprefix(RANDOM)).name} {settings.dtype}"]
    gpus = [name.removeprefix("NVIDIA ") for name in gpu_names(run.meta.environment, settings.device)]
    parts += [f"{gpus.count(name)} × {name}" if len(gpus) > 1 else name for name in dict.fromkeys(gpus)]
    if not gpus:
        parts.append(", ".join(filter(None, ("CPU", _cores(run.meta)))))
    return parts, names(labels)


def names(labels: Iterable[str]) -> list[str]:
    """Each label once; of many the first and how many others."""
    each = list(dict.fromkeys(labels))
    return each if len(each) <= MOST_NAMES else [each[0], f"{len(each) - 1} others"]


def versions(run: RunInfo) -> dict[str, str]:
    """Versions of the engines, where they are known, by label."""
    return {launch.label: launch.version for launch in run.launches if launch.version}


def facts(run: Run) -> dict[str, str]:
    """Lines by name, those that the run knows."""
    trace, lines = run.meta.trace, {"Model": model(run.meta), "Machine": machine(run.meta)}
    if run.is_batch:
        lines["Batch"] = batch(run.meta.settings)
    elif isinstance(run.meta.settings.loads[0], TraceLoad):
        lines["Trace"] = f"{trace.name}{f' ({trace.note})' if trace.note else ''}" if trace else ""
        lines["Scales"] = _scales(run) if run.pooled else ""
    else:
        lines["Load"] = _load(run, trace)
    lines["Sample"] = _sample(run) if run.repeats and not run.is_batch else ""
    version_of = versions(run.meta)
    labels = dict.fromkeys([*(label for _, label in run.engines if label in version_of), *version_of])
    days = {launch.label: f" ({launch.released})" for launch in run.meta.launches if launch.released}
    lines["Engines"] = ", ".join(f"{label} {version_of[label]}{days.get(label, '')}" for label in labels)
    lines["Measured"] = f"{_when(run.meta.created)}, rosebench {run.meta.versions.rosebench}"
    return {name: value for name, value in lines.items() if value}


def about(run: Run) -> str:
    """The facts of most weight and the versions in one line, and who made the benchmark; of a trace its name,
    and that it is no recorded one."""
    lines, trace = facts(run), run.meta.trace
    if "Trace" in lines and trace is not None:
        lines["Trace"] = f"{trace.name} trace, generated" if trace.name == GENERATED else trace.name
    ours = next((label for engine, label in run.engines if is_ours(engine, label)), "")
    made = f"made with rosebench{f', whose authors also wrote {ours}' if ours else ''}"
    return " · ".join([*(lines[name] for name in lines if name in _ABOUT), made])


def machine(run: RunInfo) -> str:
    """GPUs by name and count, unless the run was on the CPU; the CPU, its usable cores and the memory."""
    environment: Mapping[str, Any] = run.environment
    cpu, memory = environment.get("cpu") or {}, environment.get("memory_total")
    ram = f"{memory / 2**30:.0f} GiB RAM" if memory else ""
    gpus = with_counts(gpu_names(environment, run.settings.device))
    return ", ".join(filter(None, (gpus, str(cpu.get("model") or ""), _cores(run), ram)))


def _cores(run: RunInfo) -> str:
    environment: Mapping[str, Any] = run.environment
    cores = (environment.get("cpu") or {}).get("usable_cores")
    return plural(int(cores), "core") if cores else ""


def batch(settings: OnlineSettings) -> str:
    """The offline batch in words."""
    return (
        f"{settings.num_prompts:,} prompts of {lengths_text(settings.input_len)} tokens, "
        f"{lengths_text(settings.output_len)} tokens generated for each"
    )


def ways_asked(launches: Sequence[LaunchRecord]) -> str:
    """`roseinfer through its server, all others in-process`; empty where all are, or it is not known."""
    served = [launch.label for launch in launches if launch.in_process is False]
    others = ", all others in-process" if len(served) < len(launches) else ""
    return f"{few(served)} through its server{others}" if served else ""


def fitted(trace: TraceRecord) -> str:
    """Say what --fit did to the trace; empty where it left it as it was."""
    parts = []
    if trace.dropped:
        whole = trace.requests + trace.dropped
        share = percent(trace.dropped, whole)
        parts.append(f"{plural(trace.dropped, 'request')} of {whole:,} ({share}) dropped")
    if trace.changed:
        share = percent(trace.changed, trace.requests)
        parts.append(f"the lengths of {trace.changed:,} of {trace.requests:,} ({share}) changed")
    return f"--fit {trace.fit}: {', '.join(parts)}" if parts else ""


def model(run: RunInfo) -> str:
    """Name the model as it was asked for; of running servers, as they call it and where they are."""
    settings, launches = run.settings, run.launches
    if (served := _served(launches)) is not None:
        if served:
            places = several(dict.fromkeys(str(launch.settings["base_url"]) for launch in launches))
            return f"{', '.join(served)} at {places}"
        return several(
            f"{each.label}: {each.settings['model']} at {each.settings['base_url']}" for each in launches
        )
    sizes = {"tensor parallel": settings.tensor_parallel_size, "data parallel": settings.data_parallel_size}
    spread = "".join(f", {what} {size}" for what, size in sizes.items() if size > 1)
    name = settings.model
    if name.startswith(RANDOM):
        name = f"{name.removeprefix(RANDOM)} with random weights"
    return f"{name}, {settings.dtype}, {settings.device}{spread}"


def _served(launches: Sequence[LaunchRecord]) -> list[str] | None:
    """Return the model of running servers and what they compute in, as far as all report the same; nothing
    where they serve several models. None: the engines are no running servers."""
    if not launches or any("base_url" not in launch.settings for launch in launches):
        return None
    models = {str(launch.settings["model"]) for launch in launches}
    if len(models) > 1:
        return []
    reported = [[launch.facts.get(key) for launch in launches] for key in ("dtype", "quantization")]
    types = [{str(fact.value) if fact else "none" for fact in facts} for facts in reported]
    return [*models, *(name for names in types if len(names) == 1 for name in names if name != "none")]


def _load(run: Run, trace: TraceRecord | None) -> str:
    """Say what was sent, where it is no trace."""
    loads = run.meta.settings.loads
    if trace is None:
        return ""
    if (plan := run.meta.search) is not None:
        sent = lengths(run, "{} tokens in, {} out")
        return f"searched from {plan.lowest:g} to {plan.highest:g} {plan.unit}, {sent}"
    if isinstance(loads[0], ClosedLoop):
        return f"closed loop, {trace.origin}"
    origin = f"{trace.origin} ({trace.note})" if trace.note else trace.origin
    return origin if run.meta.settings.mixture is None else f"{'; '.join(map(str, loads))}: {origin}"


def lengths(run: Run, template: str) -> str:
    """Dataset of a run, or the lengths of its prompts and answers."""
    settings = run.meta.settings
    return settings.dataset or template.format(
        lengths_text(settings.input_len), lengths_text(settings.output_len)
    )


def _scales(run: Run) -> str:
    """Each with the rate that it offers."""
    offered = {summary.load: summary.offered_req_per_s for summary in run.pooled}
    scales = several(
        load_number(load) + (f" ({digits(rate)} requests/s)" if (rate := offered[load]) else "")
        for load in sorted(offered)
    )
    return f"{scales} × the time between arrivals; smaller is heavier"


def _when(created: str) -> str:
    """`2025-03-01 12:00 UTC` from ISO 8601; other text as it is."""
    try:
        return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


def repeat_counts(run: Run) -> tuple[int, int]:
    """The least and the most repeats of an engine at a load; of a search or tuning all that there are."""
    counts = Counter((cell.label, cell.load) for cell in run.repeats).values()
    if run.meta.is_adaptive or not counts:
        number = len({cell.repeat for cell in run.repeats})
        return number, number
    return min(counts), max(counts)


def repeats_text(least: int, most: int) -> str:
    """`3 repeats`, or of a run that was ended early `1 to 2 repeats`."""
    return plural(most, "repeat") if least == most else f"{least} to {plural(most, 'repeat')}"


def _sample(run: Run) -> str:
    requests = sorted({summary.num_requests for summary in run.repeats})
    return f"{span(requests)} requests × {repeats_text(*repeat_counts(run))} a point"
