"""Reads what a server reports of itself that somebody else started."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from harness.engines.base import Engine, Server
from harness.engines.local import LocalEngine
from harness.engines.selfreport import MAX_TEXT, SelfReport, value_at
from harness.engines.server_pages import get
from harness.plain_text import one_line
from harness.schema.fairness import EngineFact

#: How long a page may take, and letters of a version.
PAGE_S, LONGEST_VERSION = 2.0, 40


def note_reported(server: Server, engines: Iterable[Engine]) -> None:
    """Add to a server's record its version, and its settings as that one of `engines` reads them which finds
    the most on its pages and command line. What is there already stays."""
    described = [
        (each, *each.version_page) for each in engines if isinstance(each, LocalEngine) and each.version_page
    ]
    paths = {path for engine, version_path, _ in described for path in (*engine.pages, version_path)}
    root = server.target.path.rpartition("/v1/")[0]
    answers = {path: get(server.target, root + path, PAGE_S) for path in sorted(paths)}
    record, most = server.record, dict[str, EngineFact]()
    pages = {path: body for path, body in answers.items() if body is not None}
    report = SelfReport(pages=pages, argv=record.argv)
    for engine, path, key in described:
        version, facts = value_at(report.page(path), key), dict[str, EngineFact]()
        if not isinstance(version, str) or not version:
            continue
        with suppress(LookupError, TypeError, ValueError, AttributeError):  # pages are a stranger's
            facts = {name: fact for name, fact in engine.facts(report).items() if _is_setting(fact)}
        if record.version is None or len(facts) > len(most):
            record.version, most = one_line(version, LONGEST_VERSION), facts
    record.facts.update({name: fact for name, fact in most.items() if name not in record.facts})


def _is_setting(fact: EngineFact) -> bool:
    """Tell whether a value is one that an engine runs with, and short. Raises ValueError: it is no JSON."""
    return fact.value != "auto" and len(json.dumps(fact.value, allow_nan=False)) <= MAX_TEXT
