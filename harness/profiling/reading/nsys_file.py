"""Reads the SQLite export of Nsight Systems.

Tables and columns: docs.nvidia.com/nsight-systems, "SQLite Schema Reference". Tables are made only where
there is something to write; times are ns. A globalTid holds the process in its bits 24 to 47 and the thread
below.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from harness.profiling.reading.timeline import Column, Timeline, TraceError, numbering

US = 1e-3
PROCESS = ~0xFFFFFF
#: NVTX_EVENTS.eventType of a range pushed and popped, and of one started and ended.
RANGE_TYPES = (59, 60)
#: CUPTI's CUpti_ActivityMemcpyKind.
COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}


def read_nsys(path: Path, rank: int = 0) -> Timeline:
    """The spans of an export. NVTX ranges are taken for torch's; there are no operators.

    Args:
        rank: Of several GPUs that ran kernels, ascending, which one is meant: its kernels, what the processes
            that launched them did, and what those did that launched none.

    Raises:
        TraceError: not there, empty, or not such an export.
    """
    with _opened(path) as database:
        return _read(path, database, rank)


def count_devices(path: Path) -> int:
    """Return the number of GPUs that ran kernels, at least 1. Raises TraceError."""
    with _opened(path) as database:
        return max(1, len(_devices(database)))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file() or path.stat().st_size == 0:
        raise TraceError(path, "it is not there or empty", "profile again; the log says what nsys did")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            if "StringIds" not in _tables(database):
                what = "it is not an export of nsys: it has no StringIds"
                raise TraceError(path, what, "export the report again")
            yield database
    except sqlite3.Error as error:
        raise TraceError(path, f"it is not an export of nsys: {error}", "export the report again") from None


def _tables(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _devices(database: sqlite3.Connection) -> dict[int, set[int]]:
    """The processes that ran kernels on each GPU, ascending."""
    processes: dict[int, set[int]] = {}
    if "CUPTI_ACTIVITY_KIND_KERNEL" in _tables(database):
        query = "SELECT DISTINCT deviceId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY deviceId"
        for device, process in database.execute(query):
            processes.setdefault(device, set()).add(process)
    return processes


def _read(path: Path, database: sqlite3.Connection, rank: int) -> Timeline:
    tables, devices = _tables(database), _devices(database)
    chosen = [*devices][rank] if devices else 0
    foreign = {process for processes in devices.values() for process in processes} - devices.get(
        chosen, set()
    )
    of_device = f"WHERE deviceId = {chosen}"
    texts = dict(database.execute("SELECT id, value FROM StringIds"))
    names, links = numbering(), numbering()  # ids of links begin anew in every process
    device, calls, ranges = Column(), Column(), Column()

    def rows(table: str, columns: str, where: str = "") -> Iterator[tuple[int, ...]]:
        if table in tables:
            yield from database.execute(f"SELECT start, end, {columns} FROM {table} {where}")

    of_kinds: dict[str, tuple[str, Mapping[int, str], str]] = {
        "KERNEL": ("demangledName", texts, "unknown kernel"),
        "MEMCPY": ("copyKind", COPIES, "Memcpy"),
        "MEMSET": ("0", {}, "Memset"),
        "GRAPH_TRACE": ("0", {}, "CUDA graph"),
    }
    for kind, (column, name_of, otherwise) in of_kinds.items():
        columns = f"{column}, correlationId, globalPid, streamId"
        for start, end, what, link, process, stream in rows(
            f"CUPTI_ACTIVITY_KIND_{kind}", columns, of_device
        ):
            number = names[name_of.get(what, otherwise)]
            device.add(number, start * US, end * US, process | stream, links[process, link])
    for start, end, name, link, thread in rows(
        "CUPTI_ACTIVITY_KIND_RUNTIME", "nameId, correlationId, globalTid"
    ):
        text = texts.get(name, "unknown call").partition("_v")[0]
        if thread & PROCESS in foreign:
            continue
        calls.add(names[text], start * US, end * US, thread, links[thread & PROCESS, link])
    kinds = ", ".join(map(str, RANGE_TYPES))
    for start, end, text_id, thread, literal in rows(
        "NVTX_EVENTS",
        "textId, globalTid, text",
        f"WHERE eventType IN ({kinds}) AND end IS NOT NULL",
    ):
        marked = _EXTRAS.sub("", str(literal or texts.get(text_id, "unnamed range")))
        if thread & PROCESS in foreign:
            continue
        ranges.add(names[marked], start * US, end * US, thread)
    if not len(device.start):
        raise TraceError(path, "it holds no kernels", "profile a server that uses the GPU, under load")
    empty = Column().spans()
    return Timeline(list(names), empty, calls.spans(), ranges.spans(), device.spans())


#: What torch's emit_nvtx puts after a name.
_EXTRAS = re.compile(r", (seq|op_id|sizes|input_op_ids) = .*$")
