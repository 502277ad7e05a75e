"""`--serve`: the page of a run while it lasts, over a real socket, by a process that ends with the run."""

import http.client
import json
import shutil
import socket
from urllib.parse import urlsplit

import psutil
import pyarrow.parquet as pq
import pytest

from harness.cli.live_server import HOST, listen, served
from harness.errors import UsageError
from harness.report.live_page import live_page
from harness.runs.journal import JournalEntry
from harness.schema.load import TraceLoad
from tests.harness.report.conftest import ENGINES, make_online

pytestmark = pytest.mark.integration


def get(address, path="/", host=""):
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


@pytest.fixture(scope="module")
def four_cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live") / "run"
    return make_online(folder, engines=ENGINES[::2], scales=[0.5, 1.0], repeats=1, n=40)


@pytest.fixture
def unfinished(four_cells, tmp_path):
    """A run of four cells, of which one is in the journal."""
    folder = shutil.copytree(four_cells, tmp_path / "run")
    (folder / "online_results.json").unlink()
    journal(folder, 0)
    return folder


def journal(folder, cell):
    entry = JournalEntry(
        cell=cell, engine="vllm", label="vLLM", load=TraceLoad(scale=(0.5, 1.0)[cell]), repeat=0,
        finished="2025-03-01T12:00:00Z", requests=40,
    )  # fmt: skip
    with (folder / "journal.jsonl").open("a") as file:
        file.write(f"{entry.model_dump_json()}\n")


def test_the_page_follows_the_journal_and_ends_with_the_run(unfinished):
    children = psutil.Process().children
    before = {child.pid for child in children()}
    with listen(0) as listener, served(unfinished, listener) as address:
        assert urlsplit(address).hostname == HOST
        [child] = [child for child in children() if child.pid not in before]
        status, page = get(address)
        assert status == 200 and "vLLM at scale 0.5" in page and "roseinfer" not in page
        assert "connect-src 'self'" in page and "default-src 'none'" in page
        assert child.nice() == 19
        version = get(address, "/version")
        assert f'data-version="{version[1]}"' in page
        journal(unfinished, 1)
        assert get(address, "/version") != version
        assert "vLLM at scale 1" in get(address)[1]
        assert get(address, "/nothing")[0] == 404
        assert get(address, host="evil.example:80")[0] == 403
    assert not psutil.pid_exists(child.pid) and not child.is_running()


def test_the_page_leaves_out_what_the_run_leaves_out(unfinished):
    requests = pq.read_table(unfinished / "requests.parquet").to_pandas()
    cell = requests[requests["cell"] == 0]
    begin = float(cell["t_sched"].median())
    settings = json.loads((unfinished / "run.json").read_text())
    settings["settings"]["settle"] = begin
    (unfinished / "run.json").write_text(json.dumps(settings))
    kept = int(((cell["t_sched"] >= begin) & cell["error"].isna()).sum())
    assert 0 < kept < len(cell) / 2 and f"n = {kept} requests" in live_page(unfinished)


def test_a_run_without_a_finished_cell_and_one_that_is_gone(tmp_path, unfinished):
    (unfinished / "journal.jsonl").unlink()
    with listen(0) as listener, served(unfinished, listener) as address:
        assert "0 cells measured" in get(address)[1]
        journal(unfinished, 0)
        shutil.rmtree(unfinished)
        assert get(address)[0] == 200  # the page before


def test_a_port_that_is_taken_is_named():
    with socket.create_server((HOST, 0)) as taken, pytest.raises(UsageError, match="--serve"):
        listen(taken.getsockname()[1])
    with pytest.raises(UsageError, match="no such port"):
        listen(70000)
