"""HTTP requests to a server beside its API: settings, Prometheus histograms, and control routes."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from harness.engines.profiler import Route
from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.schema.fairness import ReportedMean

METRICS = "/metrics"
TIMEOUT_S = 10.0
#: For control routes: writing a profile can take minutes.
ROUTE_TIMEOUT_S = 300.0

_SERIES = re.compile(r"^(?P<name>[\w:]+)(\{(?P<labels>.*)\})?$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def get(target: Target, path: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """The body of `GET path`; None unless it answers 200 in time."""
    status, body = ask(target, path, timeout_s)
    return body if status == 200 else None


def ask(target: Target, path: str, timeout_s: float = TIMEOUT_S) -> tuple[int | None, str]:
    """Status and body of `GET path`; the status is None if there is no answer in time."""
    kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers=target.headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return None, ""
    finally:
        connection.close()
    return response.status, body.decode(errors="replace")


def post(target: Target, route: Route) -> None:
    """POST to a server. Raises EngineError unless it answers 2xx."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=ROUTE_TIMEOUT_S)
    body = None if route.body is None else json.dumps(route.body)
    try:
        connection.request("POST", route.path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"POST {route.path}: {error}", "see the engine's log") from None
    finally:
        connection.close()
    if response.status // 100 != 2:
        raise EngineError(
            f"POST {route.path} answered {response.status}: {answer[:300]}", "see the engine's log"
        )


@dataclass(frozen=True)
class Histogram:
    """Sum and count of a histogram of seconds at one moment, over all series with the wanted labels."""

    sum_s: float = 0.0
    count: float = 0.0


def histograms(page: str | None, wanted: Mapping[str, str]) -> dict[str, Histogram]:
    """Histograms of a Prometheus page, by metric, without those that are not on it.

    Args:
        wanted: For each metric a name, with labels that choose among its series, like
        `a:b_seconds{stage="x"}`.
    """
    if not page or not wanted:
        return {}
    try:
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except ValueError:
        return {}
    found = {}
    for metric, series in wanted.items():
        match = _SERIES.match(series)
        assert match is not None, series
        labels = dict(_LABEL.findall(match["labels"] or ""))
        values = {
            end: [
                sample.value
                for sample in samples
                if sample.name == match["name"] + end and labels.items() <= sample.labels.items()
            ]
            for end in ("_sum", "_count")
        }
        if values["_count"]:
            found[metric] = Histogram(sum(values["_sum"]), sum(values["_count"]))
    return found


def between(before: Mapping[str, Histogram], after: Mapping[str, Histogram]) -> dict[str, ReportedMean]:
    """Means of the observations between two moments; a histogram without observations is left out."""
    means = {}
    for metric, end in after.items():
        start = before.get(metric, Histogram())
        count = end.count - start.count
        if count > 0 and end.sum_s >= start.sum_s:
            means[metric] = ReportedMean(mean_ms=1e3 * (end.sum_s - start.sum_s) / count, n=int(count))
    return means
