"""An engine's server on a node of a cluster."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from harness.cluster.node_facts import Ready
from harness.cluster.ray_nodes import CLOSE_S, SILENCE_S, RayNode
from harness.engines.base import EngineSettings
from harness.errors import BenchError, LostNodeError
from harness.loadgen.load_plan import Target
from harness.schema.run_info import LaunchRecord

#: Where an engine's output is on its node.
LOG_THERE = re.compile(r"/\S*rosebench-node-\S*/server\.log")


class RemoteServer:
    """A server on a node, as the driver sees it. Its output is appended to `log` on this machine."""

    target: Target
    served_name: str
    record: LaunchRecord

    def __init__(self, node: RayNode, log: Path) -> None:
        self._node, self._log, self._read = node, log, 0

    def start(self, settings: EngineSettings, model: str, host: str) -> None:
        """Start it and wait until it is ready. Raises EngineError."""
        try:
            ready: Ready = self._node.call("serve", settings, model, host)
        except BenchError as error:
            self._fetch_log()
            raise self._with_log(error) from None
        self.target, self.served_name = ready.target, ready.served_name
        self.record = ready.record
        self._fetch_log()

    @property
    def pids(self) -> list[int]:
        """PIDs on its node of its living processes."""
        found: list[int] = self._node.call("pids", timeout_s=SILENCE_S)
        return found

    def check(self) -> None:
        """Raises EngineError when it has died, or its node was lost."""
        try:
            self._node.call("check", timeout_s=SILENCE_S)
        except BenchError as error:
            raise self._with_log(error) from None
        finally:
            self._fetch_log()

    def stop(self) -> None:
        """End it. With its node, it is gone. Raises CleanupError."""
        with suppress(LostNodeError):
            self._node.call("stop", timeout_s=CLOSE_S)
        self._fetch_log()

    def _with_log(self, error: BenchError) -> BenchError:
        """The error with the place of the log on this machine."""
        error.message = LOG_THERE.sub(str(self._log), error.message)
        error.hint = LOG_THERE.sub(str(self._log), error.hint)
        return error

    def _fetch_log(self) -> None:
        with suppress(BenchError):
            while piece := self._node.call("log", self._read, timeout_s=SILENCE_S):
                self._log.parent.mkdir(parents=True, exist_ok=True)
                with self._log.open("ab") as file:
                    file.write(piece)
                self._read += len(piece)
