"""A server that the harness starts: on its own port, ready inside the `with`, ended after it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Self

import psutil

from harness.engines.base import Launch
from harness.engines.process.guard import Order
from harness.engines.process.tree import Guarded, describe_exit
from harness.engines.selfreport import SelfReport
from harness.engines.server_pages import ask, get
from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.plain_text import hide_options, hide_values, holds_secret
from harness.schema.fairness import EngineFact
from harness.schema.run_info import LaunchRecord

POLL_S = 0.1
PROBE_TIMEOUT_S = 2.0
#: For a server that no longer listens to end: without its engine process it may still answer for a while.
ENDING_S = 15.0
#: A free port is found and then passed by number; another process can take it in between.
PORT_ATTEMPTS = 4
PORT_TAKEN = ("address already in use", "errno 98", "eaddrinuse")


def free_port(host: str) -> int:
    """Return a port that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def listeners(pids: list[int], port: int) -> int | None:
    """Count the processes that listen on the port; None if that cannot be determined."""
    count = 0
    for pid in pids:
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            return None
        count += any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
    return count


@dataclass
class EngineServer:
    """Context manager around one server process.

    Args:
        launch: Makes the command for a port.
        record: What is known before the start; argv, env, ready_s and facts are added.
        cpus: Logical CPUs that the engine may use.
        pages: Paths of pages with the engine's settings.
        facts: Reads the settings from its self-report.
        env_prefixes: Beginnings of names of variables that the engine reads.

    Raises (on entering):
        EngineError: it died (with what its log says), was not ready in time, or found no free port.
    """

    launch: Callable[[int], Launch]
    record: LaunchRecord
    log: Path
    host: str = "127.0.0.1"
    cpus: tuple[int, ...] | None = None
    pages: Sequence[str] = ()
    facts: Callable[[SelfReport], dict[str, EngineFact]] = lambda report: {}
    env_prefixes: tuple[str, ...] = ()
    target: Target = field(init=False)
    served_name: str = field(init=False)
    _process: Guarded | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        try:
            for _ in range(PORT_ATTEMPTS):
                if self._try(free_port(self.host)):
                    return self
                self._stop()
        except BaseException:
            self._stop()
            raise
        raise EngineError(
            f"{self.record.label}: other processes took {PORT_ATTEMPTS} free ports in a row before it could",
            f"try again; its log is {self.log}",
        )

    def __exit__(self, *error: object) -> None:
        self._stop()

    def check(self) -> None:
        """Raises EngineError, with what its log says, when the server has died or is about to."""
        if self._process is None:
            return
        code = self._process.wait(0)
        if code is None and listeners(self.pids, self.target.port) == 0:
            code = self._process.wait(ENDING_S)
        if code is not None:
            raise self._death(self._process, code, "while it was in use")

    @property
    def pids(self) -> list[int]:
        """PIDs of the engine's living processes."""
        return self._process.pids() if self._process else []

    def _stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _try(self, port: int) -> bool:
        """Start on that port. False if another process took it; EngineError for any other failure."""
        launch = self.launch(port)
        hide_values(launch.env)
        hide_options(launch.argv)
        begin = time.monotonic()
        env, log = os.environ | launch.env, str(self.log)
        order = Order(launch.argv, env, log, self.cpus, launch.stop_signal, launch.grace_s)
        process = Guarded(self.record.label, order)
        self._process = process
        target = Target(self.host, port, launch.path)
        while (status := ask(target, launch.ready_path, PROBE_TIMEOUT_S)[0]) != 200:
            if (code := process.wait(POLL_S)) is not None:
                if any(sign in process.tail().lower() for sign in PORT_TAKEN):
                    return False
                raise self._death(process, code, "before it was ready")
            if time.monotonic() - begin > launch.ready_timeout_s:
                raise self._late(process, launch, status)
        listening = listeners(process.pids(), port)
        if listening == 0:
            return False
        self.served_name = launch.served_name
        self.target = target
        self.record = self.record.model_copy(
            update={
                "argv": list(launch.argv),
                "env": dict(launch.env),
                "inherited": inherited(os.environ, launch.env, self.env_prefixes),
                "ready_s": round(time.monotonic() - begin, 3),
                "facts": self._processes(process, listening) | self._reported_settings(process, launch),
            }
        )
        return True

    def _processes(self, process: Guarded, listening: int | None) -> dict[str, EngineFact]:
        """Count its processes. Those that listen are HTTP processes, unless the engine reports their
        number."""
        facts = {"processes": EngineFact(value=len(process.pids()), source="counted by bench")}
        if listening is not None:
            source = "counted by bench: listening on its port"
            facts["http_processes"] = EngineFact(value=listening, source=source)
        return facts

    def _reported_settings(self, process: Guarded, launch: Launch) -> dict[str, EngineFact]:
        """The settings that the engine reports, and its CPUs."""
        log = self.log.read_bytes()[process.log_start :].decode(errors="replace")
        bodies = {path: body for path in self.pages if (body := get(self.target, path)) is not None}
        facts = self.facts(SelfReport(log, bodies, launch.argv, launch.env))
        if self.cpus is not None:
            facts["cpus"] = EngineFact(value=list(self.cpus), source="set by bench")
        return facts

    def _late(self, process: Guarded, launch: Launch, status: int | None) -> EngineError:
        answers = "" if status is None else f" (GET {launch.ready_path} answers {status})"
        missing = f"; perhaps ready_path {launch.ready_path} in its adapter is wrong"
        waited = f"{launch.ready_timeout_s:.0f} s{answers}"
        return EngineError(
            f"{self.record.label} was not ready after {waited}: {process.cause()}",
            f"see {self.log}{missing if status == HTTPStatus.NOT_FOUND else ''}",
        )

    def _death(self, process: Guarded, code: int, when: str) -> EngineError:
        return EngineError(
            f"{self.record.label} ended {when} with {describe_exit(code)}: {process.cause()}",
            f"see {self.log}",
        )


#: Beginnings of names that libraries below several engines read.
PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "FLASHINFER_", "GLOO_", "GOMP_", "HF_", "KMP_", "MALLOC_", "MKL_",
    "NCCL_", "NVSHMEM_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_",
    "TRITON_", "UCX_",
)  # fmt: skip
NAMES = frozenset({"LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED", "PYTHONOPTIMIZE"})


def inherited(
    environment: Mapping[str, str], added: Mapping[str, str], engine_prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Select the variables of `environment` that an engine or its libraries read, sorted by name.

    Args:
        added: variables that the harness sets, which are left out, as are those that hold a key or a token.
        engine_prefixes: beginnings of names that this engine reads.
    """
    prefixes = PREFIXES + engine_prefixes
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name.startswith(prefixes) or name in NAMES) and name not in added and not holds_secret(name)
    }
