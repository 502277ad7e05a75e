"""Any running server with OpenAI's API."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from harness.engines.base import (
    NO_PENALTY,
    Engine,
    EngineSettings,
    Installation,
    Missing,
    RequestSettings,
    Server,
)
from harness.engines.process.engine_server import listeners
from harness.engines.process.guard import family
from harness.engines.running.address import Address
from harness.engines.running.model_list import ServedModel, check_answers, served_model, with_context
from harness.engines.running.trial import CONTINUOUS, Trial
from harness.errors import EngineError, UsageError
from harness.loadgen.load_plan import Target
from harness.plain_text import hide_options
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord


@dataclass(frozen=True)
class RunningServer:
    """A server that the harness neither starts nor stops. `process`: its main one; None: not known."""

    target: Target
    served_name: str
    record: LaunchRecord
    process: psutil.Process | None = None

    @property
    def pids(self) -> list[int]:
        """PIDs of its living processes; empty where these are not known, as of another machine."""
        if self.process is None or not self.process.is_running():
            return []
        return [self.process.pid, *(process.pid for process in family(self.process.pid))]

    def check(self) -> None:
        """Raises EngineError if it no longer answers, or its main process has ended."""
        check_answers(self.target)
        if self.process is not None and not self.process.is_running():
            raise EngineError(
                f"process {self.process.pid} of the server at {self.target.place} has ended",
                "name the process of the server that answers now",
                new_run=True,
            )


class OpenAI(Engine):
    """The server at an address. Its key and headers are sent but never stored.

    Raises:
        UsageError: the address is not valid, or a variable is not set.
    """

    name = "openai"
    display = "openai"
    color, marker = "#7b68c8", "P"

    def __init__(self, address: Address | None = None) -> None:
        self._address = address
        self._target = None if address is None else address.target()

    def find(self) -> Installation | Missing:
        return Missing(
            self.name, "a server that is already running", "name it with --base-url or --server LABEL=URL"
        )

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        """Counts or ids of tokens in every chunk, no penalty: extensions of OpenAI's API, as ignore_eos."""
        if CONTINUOUS in request_settings.left_out and not request_settings.token_ids:
            return NO_PENALTY | request_settings.drawing
        return request_settings.token_fields

    @cached_property
    def model(self) -> ServedModel:
        """The model that requests name; the server is asked once.

        Raises:
            EngineError: the server does not answer, refuses the API key, or lists no model.
            UsageError: it lists several and none is chosen, does not have the one that is, or has no address.
        """
        if self._target is None or self._address is None:
            raise UsageError("engine openai needs the address of a running server", "add --base-url URL")
        listed = served_model(self._target, self._address.model, self._address.wait_s)
        return with_context(self._target, listed)

    @contextmanager
    def open(self, settings: EngineSettings, log: Path) -> Iterator[Server]:
        model = self.model
        assert self._target is not None and self._address is not None
        check_answers(self._target)
        for other in self._target.others:
            served_model(other, model.name)
        reported = {"context": model.max_model_len, "max_batch": model.slots}
        record = settings.engine_variant.launch_record(
            settings={"base_url": ",".join([self._address.url, *self._address.others]), "model": model.name},
            facts={
                key: EngineFact(value=value, source=model.source)
                for key, value in reported.items()
                if value is not None
            },
        )
        if self._target.proxy is not None:
            record.settings["proxy"] = ":".join(map(str, self._target.peer))
        if model.instead:
            record.settings["lists_instead"] = list(model.instead)
        process = None if self._address.pid is None else main_process(self._address.pid, self._target)
        server = RunningServer(self._target, model.name, record, process)
        if process is not None:
            record.argv = process.cmdline()
            hide_options(record.argv)
            record.facts["processes"] = EngineFact(value=len(server.pids), source="counted by bench")
        yield server

    def adapted(self, server: Server, request_settings: RequestSettings) -> RequestSettings:
        return Trial(server.target, self.encoder).adapted(request_settings)


def main_process(pid: int, target: Target) -> psutil.Process:
    """Return the process of that PID, below which is every process that listens at `target`.

    Raises:
        UsageError: There is no such process, or its files are another user's. It or those below it do not
            listen there, or others do as well. Or this process is below it.
    """
    if listeners([pid], target.port) is None:
        raise UsageError(
            f"--server-pid {pid}: another user's process does not show where it listens",
            "run bench as that user",
        )
    tree, listening = {pid, *(process.pid for process in family(pid))}, set[int]()
    if target.proxy is None and _is_here(target.host):
        listening = {each for each in psutil.pids() if listeners([each], target.port)}
    if not listening or not listening <= tree or os.getpid() in tree:
        raise UsageError(
            f"--server-pid {pid} is not the main process of the server at {target.place}",
            "name the process that started those that listen there",
            new_run=True,
        )
    return psutil.Process(pid)


def _is_here(host: str) -> bool:
    """Tell whether a host is an address of this machine."""
    ours = {address.address for each in psutil.net_if_addrs().values() for address in each}
    with suppress(OSError):
        return any(str(info[4][0]) in ours for info in socket.getaddrinfo(host, None))
    return False
