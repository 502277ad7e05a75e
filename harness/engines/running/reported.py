"""Reads what a server reports of itself that somebody else started."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress

from harness.engines.base import Engine, Server
from harness.engines.local import LocalEngine
from harness.engines.selfreport import MAX_TEXT, SelfReport, value_at
from harness.engines.server_pages import get
from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.plain_text import one_line
from harness.schema.fairness import EngineFact

#: How long a page may take, and letters of a version.
PAGE_S, LONGEST_VERSION = 2.0, 40
_ONE_VERSION = "serve one version at all of them, or give each a --server of its own"


def note_reported(server: Server, engines: Iterable[Engine]) -> None:
    """Add to a server's record its version, and its settings as that one of `engines` reads them which finds
    the most on its pages and command line. What is there already stays. A server with several addresses has
    the version and the settings that all of them report; where these differ, it has a text of both.

    Raises:
        EngineError: its addresses are of several versions.
    """
    described = [
        (each, *each.version_page) for each in engines if isinstance(each, LocalEngine) and each.version_page
    ]
    record, targets = server.record, server.target.all
    versions, reports = zip(*(_reported(each, record.argv, described) for each in targets), strict=True)
    if len({*versions} - {None}) > 1:
        places = [f"{each.place} is version {it}" for each, it in zip(targets, versions, strict=True) if it]
        reason = f"the addresses of {record.label} are of several versions: {', '.join(places)}"
        raise EngineError(reason, _ONE_VERSION)
    if record.version is None and len({*versions}) == 1:
        record.version = versions[0]
    for name, fact in reports[0].items():
        if name not in record.facts and all(name in facts for facts in reports):
            values = dict.fromkeys(str(facts[name].value) for facts in reports)
            value = fact.value if len(values) == 1 else " and ".join(values)
            record.facts[name] = fact.model_copy(update={"value": value})


def _reported(
    target: Target, argv: Sequence[str], described: Sequence[tuple[LocalEngine, str, str]]
) -> tuple[str | None, dict[str, EngineFact]]:
    """Return the version and the settings that one address tells, as that engine reads them which finds the
    most; None and nothing: it tells none."""
    paths = {path for engine, version_path, _ in described for path in (*engine.pages, version_path)}
    root = target.path.rpartition("/v1/")[0]
    answers = {path: get(target, root + path, PAGE_S) for path in sorted(paths)}
    pages = {path: body for path, body in answers.items() if body is not None}
    report, page_version, most = SelfReport(pages=pages, argv=argv), None, dict[str, EngineFact]()
    for engine, path, key in described:
        version, facts = value_at(report.page(path), key), dict[str, EngineFact]()
        if not isinstance(version, str) or not version:
            continue
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # pages are a stranger's
            facts = {name: fact for name, fact in engine.facts(report).items() if _is_setting(fact)}
        if page_version is None or len(facts) > len(most):
            page_version, most = one_line(version, LONGEST_VERSION), facts
    return page_version, most


def _is_setting(fact: EngineFact) -> bool:
    """Tell whether a value is one that an engine runs with, and short. Raises ValueError: it is no JSON."""
    return fact.value != "auto" and len(json.dumps(fact.value, allow_nan=False)) <= MAX_TEXT
