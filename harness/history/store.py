"""The store: an SQLite file with the estimates of each run, from which intervals can be made again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from platformdirs import user_data_path
from pydantic import JsonValue

from harness.compare.comparable import alike, answers_end, configuration, served_model
from harness.compare.stored_run import StoredRun
from harness.engines.request_facts import end_of_answers
from harness.errors import UsageError
from harness.files import now
from harness.metrics.estimates import Estimates
from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES, Estimate
from harness.metrics.primary import RATE
from harness.schema.load import AnyLoad, load_text, parse_any_load
from harness.telemetry.machine import hardware_text

VERSION = 4
#: Settings that say where a server is and who asks, which are nobody else's.
_OF_A_SERVER = ("base_url", "api_key_env", "ca_cert", "prompt_nonce", "out")
DEFAULT = user_data_path("rosebench") / "history.sqlite"

_TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, created TEXT NOT NULL, added TEXT NOT NULL,
    folder TEXT NOT NULL, revision TEXT, version TEXT NOT NULL, machine TEXT NOT NULL,
    settings TEXT NOT NULL, alike TEXT NOT NULL, UNIQUE (name, created));
CREATE TABLE result (
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, engine TEXT NOT NULL, variant TEXT,
    label TEXT NOT NULL, load TEXT NOT NULL, metric TEXT NOT NULL, statistic TEXT NOT NULL,
    value REAL NOT NULL, each TEXT NOT NULL, low REAL, high REAL, missing INTEGER NOT NULL,
    dependent INTEGER NOT NULL, withheld INTEGER NOT NULL, work TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (run, label, load, metric, statistic)) WITHOUT ROWID;
"""

#: From version 1, which did not keep `withheld`. Of several repeats, `missing` stands for it: what the median
#: repeat lacks. All of them together may lack less, which cannot be computed any more.
_FROM_1 = """
ALTER TABLE result ADD COLUMN withheld INTEGER NOT NULL DEFAULT 0;
UPDATE result SET withheld = missing WHERE json_array_length(each) > 1;
"""
#: From version 2, which had no offline runs.
_FROM_2 = "ALTER TABLE result ADD COLUMN work TEXT NOT NULL DEFAULT '[]';"
#: From version 3, in which runs of other numbers of requests were alike.
_FROM_3 = "UPDATE run SET alike = with_requests(alike, settings);"


@dataclass(frozen=True)
class Past:
    """A run in the store. `alike` is the same of runs that measured the same on the same hardware."""

    id: int
    name: str
    created: str
    revision: str | None
    version: str
    machine: str
    alike: str


@dataclass(frozen=True)
class Entry:
    """One statistic of one engine at one load in a run."""

    past: Past
    label: str
    load: AnyLoad
    estimate: Estimate


class Store:
    """An open store. Changes are whole or not there."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, create: bool = False) -> Iterator[Self]:
        """The store in a file.

        Raises:
            UsageError: There is none and none is to be made, it cannot be used, or a newer version wrote it.
        """
        if not create and not path.is_file():
            raise UsageError(f"there is no history in {path}", "add a run: bench history add RUN")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"{path} cannot be opened: {error}", "name another file with --store") from None
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            [(version,)] = connection.execute("PRAGMA user_version")
            if version > VERSION:
                raise UsageError(f"{path} is of a newer version of bench", "use that, or another --store")
            if version < VERSION:
                _migrate(connection, path)
            yield cls(connection)
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used: {error}", "name another file with --store") from None
        finally:
            connection.close()

    def add(self, run: StoredRun) -> dict[str, str]:
        """Keep a run; one that is there already is replaced, and one without engines is not kept. Returns the
        engines that are left out because cells of theirs are invalid or were not measured, with a reason.

        Raises:
            UsageError: There is another run of the same name that began in the same second.
        """
        left_out = {
            label: f"one of its cells was not measured: {label}, {load}" for label, load in run.not_measured
        }
        left_out |= {
            label: f"one of its repeats is missing: {reasons[0]}"
            for label in run.cells
            if label not in left_out and (reasons := run.missing(label))
        }
        left_out |= {
            label: f"one of its cells is invalid: {reasons[0]}"
            for label in run.cells
            if (reasons := run.invalid(label))
        }
        info = run.info
        row = {
            "name": run.path.resolve().name, "created": info.created, "added": now(),
            "folder": str(run.path.resolve()), "revision": info.versions.git_rev,
            "version": info.versions.rosebench,
            "machine": hardware_text(run.settings.device, info.environment),
            "settings": run.settings.model_dump_json(), "alike": alike_hash(run),
        }  # fmt: skip
        results = [
            (group.engine, group.variant, label, load_text(load), *key, *_columns(estimate))
            for label, loads in run.cells.items()
            for load, (group, *_) in loads.items()
            if label not in left_out
            for key, estimate in run.estimates(label, load).items()
        ]
        if self._has_another(row, results):
            raise UsageError(
                f"the history has another run that is called {row['name']} and began in the same second",
                "give the folder of one of them another name",
            )
        with self._db:
            self._db.execute("DELETE FROM run WHERE name = :name AND created = :created", row)
            if not results:
                return left_out
            found = self._db.execute(
                f"INSERT INTO run ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})", row
            )
            self._db.executemany(
                f"INSERT INTO result VALUES ({', '.join('?' * 15)})",
                [(found.lastrowid, *result) for result in results],
            )
        return left_out

    def _has_another(self, row: Mapping[str, str | None], results: Sequence[tuple[object, ...]]) -> bool:
        """Whether there is a run of that name and time that has no rate of these results. Rates are of
        measured times: two runs have none in common."""
        kept = self._db.execute(
            "SELECT label, load, each FROM result WHERE metric = :rate AND run IN "
            "(SELECT id FROM run WHERE name = :name AND created = :created)",
            {**row, "rate": RATE},
        ).fetchall()
        new = {(label, load, each) for _, _, label, load, name, _, _, each, *_ in results if name == RATE}
        return bool(kept) and bool(new) and new.isdisjoint(kept)

    def remove(self, runs: Iterable[Past]) -> None:
        """Forget runs, all or, should that fail, none."""
        with self._db:
            self._db.executemany("DELETE FROM run WHERE id = ?", [(run.id,) for run in runs])

    def runs(self) -> list[Past]:
        """From the oldest to the newest."""
        rows = self._db.execute(
            "SELECT id, name, created, revision, version, machine, alike FROM run ORDER BY created, id"
        )
        return [Past(*row) for row in rows]

    def entries(self, metric: str, statistic: str) -> list[Entry]:
        """Of every run, engine and load, runs from the oldest to the newest."""
        past = {run.id: run for run in self.runs()}
        rows = self._db.execute(
            "SELECT run, label, load, value, each, low, high, missing, dependent, withheld, work FROM result "
            "WHERE metric = ? AND statistic = ?",
            (metric, statistic),
        ).fetchall()
        order = {id: place for place, id in enumerate(past)}
        return [
            Entry(past[run], label, parse_any_load(load), _estimate(statistic, *columns))
            for run, label, load, *columns in sorted(rows, key=lambda row: (row[1], row[2], order[row[0]]))
        ]

    def rates(self) -> list[str]:
        """Names of the rates that any run has."""
        rows = self._db.execute("SELECT DISTINCT metric FROM result WHERE metric = statistic ORDER BY metric")
        return [name for (name,) in rows]

    def settings(self, past: Past) -> dict[str, JsonValue]:
        """Those of a run that are one value each, without the engines and how a running server is asked."""
        [(text,)] = self._db.execute("SELECT settings FROM run WHERE id = ?", (past.id,))
        found: dict[str, JsonValue] = json.loads(text)
        plain = {name: value for name, value in found.items() if isinstance(value, str | int | float | bool)}
        return {name: value for name, value in plain.items() if name not in _OF_A_SERVER}

    def measured(self, past: Past) -> list[tuple[str, str | None, str, AnyLoad]]:
        """Engine, variant, label and load of everything that a run has results of."""
        rows = self._db.execute(
            "SELECT DISTINCT engine, variant, label, load FROM result WHERE run = ? ORDER BY label, load",
            (past.id,),
        )
        return [(engine, variant, label, parse_any_load(load)) for engine, variant, label, load in rows]

    def estimates(self, past: Past, label: str, load: AnyLoad) -> Estimates:
        """Everything that is known of one engine at one load in a run."""
        rows = self._db.execute(
            "SELECT metric, statistic, value, each, low, high, missing, dependent, withheld, work "
            "FROM result WHERE run = ? AND label = ? AND load = ?",
            (past.id, label, load_text(load)),
        )
        return {(metric, statistic): _estimate(statistic, *columns) for metric, statistic, *columns in rows}


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or migrate those of an older version; other processes may want the same.

    Raises UsageError where another program has tables there.
    """
    connection.create_function("with_requests", 2, _with_requests)
    connection.execute("BEGIN IMMEDIATE")
    [(version,)] = connection.execute("PRAGMA user_version")
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise UsageError(f"{path} is a database of another program", "name another file with --store")
    changes = [_TABLES, _FROM_1, _FROM_2, _FROM_3]
    for statement in ";".join(changes[version:] if version else changes[:1]).split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.commit()


def alike_hash(run: StoredRun) -> str:
    """The same for runs that can be compared: what `bench compare` wants alike, with the requests as the
    settings have them."""
    values = alike(run)
    served = {label: model for label in run.cells if (model := served_model(run, label)) is not None}
    if served:  # by running servers; without them, runs are alike that older versions kept
        values["served-model"] = served
    wanted = (None, end_of_answers(run.settings.ignore_eos))
    if ends := {label: end for label in run.cells if (end := answers_end(run, label)) not in wanted}:
        values["answers"] = ends
    if drawn := {label: found for label in run.cells if (found := configuration(run, label)) is not None}:
        values["configuration"] = drawn  # two tunings give their configurations the same labels
    return _with_requests(_hash(values), run.settings.model_dump_json())


def _with_requests(alike: str, settings: str) -> str:
    """A hash with how many requests are sent by settings in JSON; those of a batch are its load."""
    given = json.loads(settings)
    if "n" not in given:
        return alike
    return _hash({"alike": alike, "n": given["n"], "rounds": given.get("rounds")})


def _hash(values: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _columns(estimate: Estimate) -> tuple[object, ...]:
    low, high = estimate.within or (None, None)
    each = json.dumps([float(value) for value in estimate.each])
    counts = estimate.missing, int(estimate.dependent), estimate.withheld
    return estimate.value, each, low, high, *counts, json.dumps(estimate.work)


def _estimate(
    statistic: str,
    value: float,
    each: str,
    low: float | None,
    high: float | None,
    missing: int,
    dependent: int,
    withheld: int,
    work: str,
) -> Estimate:
    within = None if low is None or high is None else (low, high)
    assumed = ASSUMED_OF_LATENCIES.get(statistic, ASSUMED_OF_RATES)
    return Estimate(
        value,
        np.array(json.loads(each)),
        within,
        missing,
        bool(dependent),
        assumed,
        withheld,
        tuple(json.loads(work)),
    )
