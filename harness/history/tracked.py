"""The history as experiment trackers hold it: a run of theirs for each engine and load of a run of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from harness.history.store import Store
from harness.metrics.intervals import own
from harness.schema.load import load_text
from harness.schema.metrics import METRICS


@dataclass(frozen=True)
class Tracked:
    """One engine at one load of a run.

    Attributes:
        name: Of the engine and the load, for people.
        key: The same whenever it is exported.
        settings: By name; text, numbers and truth values.
        values: Of all repeats together, with `_low` and `_high` of the 95 % interval where there is one.
        each: Of each repeat, in their order, by the same names.
    """

    run: str
    name: str
    key: str
    created: str
    revision: str | None
    settings: dict[str, JsonValue]
    values: dict[str, float]
    each: dict[str, list[float]]


def tracked(store: Store) -> Iterator[Tracked]:
    """Everything in the store, runs from the oldest to the newest."""
    for past in store.runs():
        settings = store.settings(past)
        for engine, variant, label, load in store.measured(past):
            values: dict[str, float] = {}
            each: dict[str, list[float]] = {}
            for (metric, statistic), estimate in store.estimates(past, label, load).items():
                if estimate.missing:
                    continue
                short = METRICS[metric].short_name if metric in METRICS else metric
                name = short if metric == statistic else f"{short}_{statistic}"
                values[name] = estimate.value
                each[name] = [float(value) for value in estimate.each]
                if (ends := own(estimate)) is not None:
                    values[f"{name}_low"], values[f"{name}_high"] = ends
            about: dict[str, JsonValue] = {"engine": engine, "variant": variant, "label": label}
            about |= {"load": str(load), "machine": past.machine, "rosebench": past.version}
            about |= {f"load_{name}": value for name, value in load.model_dump().items()}
            yield Tracked(
                past.name,
                f"{label}, {load}",
                f"{past.name}/{past.created}/{label}/{load_text(load)}",
                past.created,
                past.revision,
                {name: value for name, value in (settings | about).items() if value is not None},
                values,
                each,
            )
