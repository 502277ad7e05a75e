"""Runs that version 0.1 stored (schema 1), brought over to schema 2.

Schema 1 wrote a load as `scale` and `concurrency` (a closed loop had scale 1; older runs named their one
number of requests in flight in the settings alone), a hint as `mend`, what engines report as `told`, and the
time that a turn waited as `held_s`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from harness.errors import UsageError
from harness.files import write_json, write_whole
from harness.plain_text import visible_content
from harness.records.columns import CHUNKS, REQUESTS
from harness.records.parquet import write_table
from harness.runs.folder import FIGURES, JOURNAL, MANIFEST, OFFLINE_RESULTS, ONLINE_RESULTS, RUN, SKIPPED
from harness.runs.journal import JournalEntry
from harness.runs.reader import load_run
from harness.schema.load import ClosedLoop, Load, TraceLoad, load_text
from harness.schema.profile import ProfileManifest, Profiles
from harness.schema.results import OfflineResults, OnlineResults
from harness.schema.results import Skipped as SkippedRecord
from harness.schema.run_info import RUN_INFO, SCHEMA_VERSION
from harness.schema.stored import checked, read_json

Record = dict[str, Any]
_HINT = "restore the file"


def convert_run(source: Path, target: Path | None) -> Path:
    """Convert the run in the folder `source` into the folder `target`, which appears whole. Returns it.

    What has raw tables gets results computed from them; results without them keep their numbers. Everything
    else in the folder is copied.

    Args:
        target: A folder that is not there yet. None: `source` itself is replaced.

    Raises:
        UsageError: `source` holds no run of schema 1, a file in it is broken, or `target` is there.
    """
    place = target or source
    fresh, old = (place.with_name(f".{place.resolve().name}.{word}") for word in ("converting", "schema1"))
    if target is None:
        _bring_back(old, source)  # the command was killed between its last two renames
    _check(source, target)
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        shutil.copytree(source, fresh)
        _convert(fresh)
        if target is None:
            source.rename(old)
        fresh.rename(place)
    except UsageError as error:
        error.message = error.message.replace(str(fresh), str(source))
        raise
    finally:
        if target is None:
            _bring_back(old, source)
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return place


def _bring_back(old: Path, source: Path) -> None:
    """Give the run that was moved to `old` its name again, where nothing has that name."""
    if old.is_dir() and not source.exists():
        old.rename(source)


def _check(source: Path, target: Path | None) -> None:
    """Raises UsageError where `source` holds no run of schema 1, or `target` is there."""
    if not (source / RUN).is_file():
        raise UsageError(f"{source} holds no run: there is no {RUN} in it", "name the folder of a run")
    with _of_version_1(source / RUN):
        version = _read(source / RUN).get("schema_version", 1)
    if version != 1:
        raise UsageError(f"the run in {source} is of schema {version} already", "use it as it is")
    if target is not None and target.exists():
        raise UsageError(f"{target} is there already", "name another --out, or remove it")


@contextmanager
def _of_version_1(path: Path) -> Iterator[None]:
    """What is missing inside, or of another type, is a fault of the file at `path`: a UsageError names it."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        fault = f": {error.args[0]} is missing" if isinstance(error, KeyError) else ""
        raise UsageError(f"{path} is not as version 0.1 of bench wrote it{fault}", _HINT) from None


def _convert(run: Path) -> None:
    """Every file of a run, in place."""
    with _of_version_1(run / RUN):
        in_flight = _read(run / RUN)["settings"].get("concurrency")
    only = in_flight if isinstance(in_flight, int) else None
    for table in ("requests", "chunks"):
        for path in [run / f"{table}.parquet", *(run / "raw").glob(f"*.{table}.parquet")]:
            if path.is_file():
                _convert_table(path, only)
    if (run / JOURNAL).is_file():
        lines = (run / JOURNAL).read_bytes().split(b"\n")[:-1]
        with _of_version_1(run / JOURNAL):
            entries = [
                checked(
                    _entry(visible_content(json.loads(line)), only), JournalEntry, str(run / JOURNAL), _HINT
                )
                for line in lines
            ]
        write_whole(run / JOURNAL, b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries))
    if (run / SKIPPED).is_file():
        with _of_version_1(run / SKIPPED):
            faults = [_skipped(fault, only) for fault in _read(run / SKIPPED)]
        kept = checked(faults, list[SkippedRecord], str(run / SKIPPED), _HINT)
        dumped = TypeAdapter(list[SkippedRecord]).dump_json(kept, indent=2)
        write_whole(run / SKIPPED, dumped + b"\n")
    files: dict[str, tuple[Any, Callable[[Record, int | None], Record]]] = {
        RUN: (RUN_INFO, lambda info, _: _versioned(info)),
        ONLINE_RESULTS: (OnlineResults, _online),
        OFFLINE_RESULTS: (OfflineResults, _offline),
        MANIFEST: (ProfileManifest, _manifest),
        FIGURES: (Profiles, _profiles),
    }
    for name, (kind, convert) in files.items():
        if (run / name).is_file():
            with _of_version_1(run / name):
                converted = convert(_read(run / name), only)
            write_json(run / name, checked(converted, kind, str(run / name), _HINT))
    if (run / ONLINE_RESULTS).is_file() and (run / "requests.parquet").is_file():
        write_json(run / ONLINE_RESULTS, load_run(run).results)


def _read(path: Path) -> Any:
    return read_json(path, _HINT)


def _load(record: Record, only: int | None) -> Load | None:
    """The load of a record, whose own words for it are removed; None of one that has none."""
    scale, concurrency = record.pop("scale", None), record.pop("concurrency", None)
    if concurrency is None and scale is not None:
        concurrency = only
    if concurrency is not None:
        return ClosedLoop(concurrency=concurrency)
    return None if scale is None else TraceLoad(scale=scale)


def _at_load(record: Record, only: int | None) -> Record:
    if "load" not in record:
        record["load"] = _load(record, only)
    return record


def _renamed(record: Record, **names: str) -> Record:
    return {names.get(name, name): value for name, value in record.items()}


def _versioned(record: Record) -> Record:
    return record | {"schema_version": SCHEMA_VERSION}


def _skipped(record: Record, only: int | None) -> Record:
    return _renamed(_at_load(dict(record), only), mend="hint")


def _summary(record: Record, only: int | None) -> Record:
    record = _renamed(_at_load(dict(record), only), held_turns="late_turns")
    for part in (record.get("waterfall") or {}).get("parts", []):
        part["how"] = part["how"].replace("nobody tells", "not reported")
    return record


def _entry(record: Record, only: int | None) -> Record:
    detail = record.pop("detail", {})
    kept = {
        "clients": detail.get("clients") or [],
        "prefix_cache": detail.get("prefix_cache"),
        "reported": detail.get("told") or {},
    }
    return _at_load(record, only) | kept


def _online(results: Record, only: int | None) -> Record:
    results = _offline(_renamed(results, told="reported"), only)
    results["summaries"] = [_summary(summary, only) for summary in results["summaries"]]
    for name in ("comparisons", "prefixes"):
        results[name] = [_at_load(dict(record), only) for record in results.get(name, [])]
    for hits in results["prefixes"]:
        hits["source"] = hits["source"].replace("does not tell", "does not report it")
    return results


def _offline(results: Record, only: int | None) -> Record:
    skipped = [_skipped(fault, only) for fault in results.get("skipped", [])]
    return _versioned(results) | {"meta": _versioned(results["meta"]), "skipped": skipped}


def _manifest(manifest: Record, only: int | None) -> Record:
    meta = _versioned(manifest["meta"])
    of_batch = meta["kind"] == "offline"
    runs = [_at_load(dict(profiled), None if of_batch else only) for profiled in manifest["runs"]]
    return _versioned(manifest) | {"meta": meta, "runs": runs}


def _profiles(profiles: Record, only: int | None) -> Record:
    """The profiles without gaps of the older form, which were sentences: the figures give them again."""
    gaps = [_at_load(dict(gap), only) for gap in profiles.get("gaps", []) if "conclusion" not in gap]
    return _versioned(profiles) | {"gaps": gaps}


def _convert_table(path: Path, only: int | None) -> None:
    """A raw table with today's columns; those that it never had are null."""
    wanted = REQUESTS if path.name.endswith("requests.parquet") else CHUNKS
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "restore it") from None
    table = table.rename_columns(["late_s" if name == "held_s" else name for name in table.column_names])
    if "load" in wanted.names and "load" not in table.column_names:
        absent = [None] * len(table)
        pairs = [
            table[name].to_pylist() if name in table.column_names else absent
            for name in ("scale", "concurrency")
        ]
        texts = [_text(scale, count, only) for scale, count in zip(*pairs, strict=True)]
        table = table.append_column("load", pa.array(texts, pa.string()))
    columns = [
        pc.cast(table[field.name], field.type)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in wanted
    ]
    write_table(path, pa.table(columns, schema=wanted))


def _text(scale: float | None, concurrency: int | None, only: int | None) -> str | None:
    load = _load({"scale": scale, "concurrency": concurrency}, only)
    return None if load is None else load_text(load)
