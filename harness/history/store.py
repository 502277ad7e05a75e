"""The store: an SQLite file with the estimates of each run, from which intervals can be computed again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from platformdirs import user_data_path
from pydantic import JsonValue

from harness.compare.comparable import alike, answers_end, configuration, prompts_sent, served_model
from harness.compare.stored_run import StoredRun
from harness.engines.selfreport import end_of_answers
from harness.errors import UsageError
from harness.files import now
from harness.metrics.estimates import Estimates
from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES, Estimate
from harness.schema.load import Load, load_text, parse_load
from harness.schema.metrics import rates
from harness.schema.online_settings import OnlineSettings
from harness.telemetry.machine import hardware_text

VERSION = 1
#: Settings that say where a server is and who asks it.
_OF_A_SERVER = ("base_url", "api_key_env", "server_pid", "ca_cert", "prompt_nonce", "out")
#: A rate that every run has.
_RATE = rates("headline")[0]
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
    dependent INTEGER NOT NULL, withheld INTEGER NOT NULL, work TEXT NOT NULL,
    PRIMARY KEY (run, label, load, metric, statistic)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Past:
    """A run in the store. `alike` is equal for runs that measured the same on the same hardware."""

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
    load: Load
    estimate: Estimate


class Store:
    """An open store. Changes are whole or not there."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, create: bool = False) -> Iterator[Self]:
        """Open the store in a file.

        Raises:
            UsageError: There is none and `create` is not set, it cannot be used, or a newer version wrote it.
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
                _create(connection, path)
            yield cls(connection)
        except sqlite3.Error as error:
            raise UsageError(f"{path} cannot be used: {error}", "name another file with --store") from None
        finally:
            connection.close()

    def add(self, run: StoredRun) -> dict[str, str]:
        """Keep a run; it replaces itself, and a run without engines is not kept.

        Returns:
            Engines that are left out because a cell is invalid or was not measured, each with the reason.

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
            inserted = self._db.execute(
                f"INSERT INTO run ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})", row
            )
            self._db.executemany(
                f"INSERT INTO result VALUES ({', '.join('?' * 15)})",
                [(inserted.lastrowid, *result) for result in results],
            )
        return left_out

    def _has_another(self, row: Mapping[str, str | None], results: Sequence[tuple[object, ...]]) -> bool:
        """Return whether a run of that name and time has no rate of these results.

        Rates are of measured times: two runs have none in common.
        """
        old = self._db.execute(
            "SELECT label, load, each FROM result WHERE metric = :rate AND run IN "
            "(SELECT id FROM run WHERE name = :name AND created = :created)",
            {**row, "rate": _RATE},
        ).fetchall()
        new = {(label, load, each) for _, _, label, load, name, _, _, each, *_ in results if name == _RATE}
        return bool(old) and bool(new) and new.isdisjoint(old)

    def remove(self, runs: Iterable[Past]) -> None:
        """Forget runs, all or, should that fail, none."""
        with self._db:
            self._db.executemany("DELETE FROM run WHERE id = ?", [(run.id,) for run in runs])

    def runs(self) -> list[Past]:
        """Return the runs from the oldest to the newest."""
        rows = self._db.execute(
            "SELECT id, name, created, revision, version, machine, alike FROM run ORDER BY created, id"
        )
        return [Past(*row) for row in rows]

    def entries(self, metric: str, statistic: str) -> list[Entry]:
        """Return the statistic of every run, engine and load, runs from the oldest to the newest."""
        past = {run.id: run for run in self.runs()}
        rows = self._db.execute(
            "SELECT run, label, load, value, each, low, high, missing, dependent, withheld, work FROM result "
            "WHERE metric = ? AND statistic = ?",
            (metric, statistic),
        ).fetchall()
        order = {id: place for place, id in enumerate(past)}
        return [
            Entry(past[run], label, parse_load(load), _estimate(statistic, columns))
            for run, label, load, *columns in sorted(rows, key=lambda row: (row[1], row[2], order[row[0]]))
        ]

    def rates(self) -> list[str]:
        """Return the names of the rates that any run has."""
        rows = self._db.execute("SELECT DISTINCT metric FROM result WHERE metric = statistic ORDER BY metric")
        return [name for (name,) in rows]

    def settings(self, past: Past) -> dict[str, JsonValue]:
        """Return the settings of a run that are one value each, without those of a running server."""
        [(text,)] = self._db.execute("SELECT settings FROM run WHERE id = ?", (past.id,))
        every: dict[str, JsonValue] = json.loads(text)
        plain = {name: value for name, value in every.items() if isinstance(value, str | int | float | bool)}
        return {name: value for name, value in plain.items() if name not in _OF_A_SERVER}

    def measured(self, past: Past) -> list[tuple[str, str | None, str, Load]]:
        """Return engine, variant, label and load of all results of a run."""
        rows = self._db.execute(
            "SELECT DISTINCT engine, variant, label, load FROM result WHERE run = ? ORDER BY label, load",
            (past.id,),
        )
        return [(engine, variant, label, parse_load(load)) for engine, variant, label, load in rows]

    def estimates(self, past: Past, label: str, load: Load) -> Estimates:
        """Return every estimate of one engine at one load in a run."""
        rows = self._db.execute(
            "SELECT metric, statistic, value, each, low, high, missing, dependent, withheld, work "
            "FROM result WHERE run = ? AND label = ? AND load = ?",
            (past.id, label, load_text(load)),
        )
        return {(metric, statistic): _estimate(statistic, columns) for metric, statistic, *columns in rows}


def _create(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, unless another process just did.

    Raises:
        UsageError: Another program has tables in the file.
    """
    connection.execute("BEGIN IMMEDIATE")
    [(version,)] = connection.execute("PRAGMA user_version")
    if version == 0:
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise UsageError(f"{path} is a database of another program", "name another file with --store")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.commit()


def alike_hash(run: StoredRun) -> str:
    """Return a hash that is the same for runs that can be compared.

    It is of everything that `bench compare` compares, and of the number of requests that the settings have;
    those of a batch are its load.
    """
    values = alike(run)
    usual = (None, end_of_answers(run.settings.ignore_eos))
    values["served-model"] = {label: name for label in run.cells if (name := served_model(run, label))}
    values["configuration"] = {label: drawn for label in run.cells if (drawn := configuration(run, label))}
    values["answers"] = {label: end for label in run.cells if (end := answers_end(run, label)) not in usual}
    texts = [label for label in run.cells if prompts_sent(run, label) == "text"]
    if texts and values["prompts"] != "text":
        values["texts"] = texts
    if isinstance(run.settings, OnlineSettings):
        values["requests"] = {"n": run.settings.n, "rounds": run.settings.rounds}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _columns(estimate: Estimate) -> tuple[object, ...]:
    low, high = estimate.within or (None, None)
    each = json.dumps([float(value) for value in estimate.each])
    counts = estimate.missing, int(estimate.dependent), estimate.withheld
    return estimate.value, each, low, high, *counts, json.dumps(estimate.work)


def _estimate(statistic: str, columns: Sequence[Any]) -> Estimate:
    value, each, low, high, missing, dependent, withheld, work = columns
    within = None if low is None or high is None else (low, high)
    assumed = ASSUMED_OF_LATENCIES.get(statistic, ASSUMED_OF_RATES)
    repeats, drawn = np.array(json.loads(each)), tuple(json.loads(work))
    return Estimate(value, repeats, within, missing, bool(dependent), assumed, withheld, drawn)
