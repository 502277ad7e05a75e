"""What becomes of a run when a host is cut off, freezes, or vanishes with all that ran on it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from harness.records.parquet import read_records
from harness.report.render import summary
from harness.runs.events import CellProgress, Event
from harness.runs.reader import load_run
from harness.schema.online_settings import OnlineSettings
from tests.harness.cluster.network import Network, SimulatedHost, Skew, ray_network
from tests.harness.cluster.test_faults import GIVEN, N, gone, tables, wait_until
from tests.harness.measured import resume_online, run_online

pytestmark = pytest.mark.cluster

#: What runs where clients, and where an engine is.
SENDER, ENGINE = "harness.loadgen.client_main", "harness.engines.process.guard"


@pytest.fixture(scope="module")
def hosts(integration: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Two for a run, one in reserve, and one that each test before the last loses."""
    pytest.importorskip("ray")
    with ray_network(tmp_path_factory.mktemp("hosts"), [Skew()] * 5) as made:
        yield made


class LoseOnce:
    """Loses the host with a program when the first cell is going on. `seen` is what ran on it then."""

    def __init__(self, hosts: Network, program: str, lose: Callable[[SimulatedHost], None]) -> None:
        self._hosts, self._program, self._lose = hosts, program, lose
        self.host: SimulatedHost | None = None
        self.seen: list[psutil.Process] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, CellProgress) and event.progress.completed > 5 and self.host is None:
            self.host = next(host for host in self._hosts.hosts if running(host, self._program))
            self.seen = [process for program in (SENDER, ENGINE) for process in running(self.host, program)]
            self._lose(self.host)


def running(host: SimulatedHost, program: str) -> list[psutil.Process]:
    """Processes of a program on a host, with all that these have started."""
    found = []
    for process in host.running:
        try:
            if program in process.cmdline():
                found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def cut(hosts: Network) -> Callable[[SimulatedHost], None]:
    return hosts.cut


def vanish(hosts: Network) -> Callable[[SimulatedHost], None]:
    def lose(host: SimulatedHost) -> None:
        hosts.cut(host)  # no connection is closed in an orderly way
        host.signal(signal.SIGKILL)

    return lose


def freeze(hosts: Network) -> Callable[[SimulatedHost], None]:
    return lambda host: host.signal(signal.SIGSTOP)


@pytest.mark.parametrize(
    ("program", "how"),
    [(SENDER, cut), (ENGINE, vanish), (SENDER, freeze)],
    ids=["a sender is cut off", "the engine's vanishes", "a sender freezes"],
)
def test_a_run_goes_on_without_a_host(hosts, program, how, tmp_path):
    lose = LoseOnce(hosts, program, how(hosts))
    given = GIVEN | {"load_nodes": 1, "out": tmp_path}
    folder, results = run_online(OnlineSettings.model_validate(given), ["bench"], lose)
    assert lose.host is not None and lose.seen
    [fault] = results.skipped
    assert fault.repeat == 0 and "node" in fault.reason
    measured = tables(folder)
    assert {*measured["repeat"]} == {1} and len(measured) == N and measured["error"].isna().all()
    assert fault.reason.partition(":")[0] in summary(load_run(folder, trust=True))
    before = read_records(folder).requests
    folder, results = resume_online(folder)
    after = tables(folder)
    assert not results.skipped and len(after) == 2 * N
    assert not after.duplicated(["cell", "request"]).any()
    kept = after[after["repeat"] == 1].sort_values("request")
    assert kept["t_sent"].tolist() == before.sort_values("request")["t_sent"].tolist()
    lose.host.signal(signal.SIGCONT)
    wait_until(lambda: gone(lose.seen), 180)
    wait_until(lambda: not any(running(host, each) for host in hosts.hosts for each in (SENDER, ENGINE)), 60)
