"""Actors on the nodes of a Ray cluster, and what becomes of calls to them."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.cluster.node import Node
from harness.cluster.node_facts import WHOLE, NodeFacts, Part, Ready
from harness.engines.base import EngineSettings
from harness.errors import BenchError, LostNodeError, UsageError
from harness.loadgen.load_plan import Target
from harness.schema.run_info import LaunchRecord

#: Threads of a node's process: a clock is read and progress asked for while an engine starts or a load runs.
THREADS = 8
#: Seconds in which nodes that are free give their places.
PLACE_S = 60.0
#: Seconds in which another node takes the place of one that was lost, and from one try to the next.
REVIVE_S, RETRY_S = 90.0, 1.0
#: Seconds without an answer after which a node that should answer at once counts as lost.
SILENCE_S = 30.0
#: From one message to the nodes that the driver is there to the next.
HEARTBEAT_S = 10.0
#: Seconds for everything on a node to end.
CLOSE_S = 60.0

#: With its own default Ray kills an engine's guard before the guard has ended the engine.
ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "false"}

Bundle = dict[str, float]


class _Actor(Node):
    """A node's work in a process of Ray."""

    def __init__(self, part: Part) -> None:
        super().__init__(ray.util.get_node_ip_address(), part)  # type: ignore[no-untyped-call]


class RayNode:
    """A node's process. It ends with the driver at the latest.

    Args:
        bundle: Which place of the group is its.
        gpus: How many of the node's GPUs it may use.
        part: The part of the node's CPUs that it may use.
    """

    def __init__(self, group: PlacementGroup, bundle: int, gpus: float = 0, part: Part = WHOLE) -> None:
        self._group, self._bundle, self._gpus, self._part = group, bundle, gpus, part
        self.suffix, self._abandoned = "", False
        self._start()

    @property
    def name(self) -> str:
        """The node's host name, with a suffix where another has the same."""
        return f"{self._facts.name if self._facts else f'of place {self._bundle}'}{self.suffix}"

    @property
    def facts(self) -> NodeFacts:
        """Description of the node."""
        assert self._facts is not None
        return self._facts

    def call(self, method: str, *arguments: object, timeout_s: float | None = None) -> Any:
        """Call a method of `harness.cluster.node.Node` and return its result.

        Raises:
            BenchError: What it raises, with the node's name.
            LostNodeError: The node does not answer.
        """
        return self.result(self.begin(method, *arguments), timeout_s)

    def begin(self, method: str, *arguments: object) -> Any:
        """Call a method; a reference to its result."""
        return getattr(self._actor, method).remote(*arguments)

    def result(self, reference: Any, timeout_s: float | None = None) -> Any:
        """The result of `begin`. Raises as `call`."""
        try:
            return ray.get(reference, timeout=timeout_s)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, BenchError):
                cause.message = f"node {self.name}: {cause.message}"
                raise cause from None
            raise BenchError(f"node {self.name}: {type(cause).__name__}: {cause}") from error
        except GetTimeoutError:
            raise self._lost(f"no answer for {timeout_s:g} s") from None
        except RayError as error:
            raise self._lost(str(error)) from None

    def clock(self) -> float:
        """Return the node's monotonic clock, in seconds. Raises as `call`."""
        seconds: float = self.call("clock", timeout_s=SILENCE_S)
        return seconds

    def send_heartbeat(self) -> None:
        """Say that the driver is still there."""
        if not self._is_lost:
            with suppress(Exception):  # as in `kill`
                self.begin("heartbeat")

    def revive(self) -> None:
        """Start its process again where it has ended; on another node where its own is gone, which Ray can
        take a minute to notice.

        Raises:
            LostNodeError: There is no node left for it.
        """
        if self._abandoned:
            raise self._lost("the run ends")
        with suppress(LostNodeError):
            if not self._is_lost:
                self.clock()
                return
        deadline = time.monotonic() + REVIVE_S
        while True:
            self.kill()
            try:
                self._start()
                return
            except LostNodeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def close(self) -> None:
        """End everything there, then the process."""
        if not self._is_lost:
            with suppress(BenchError):
                self.call("close", timeout_s=CLOSE_S)
        self.kill()

    def abandon(self) -> None:
        """End its process for good."""
        self._abandoned = True
        self.kill()

    def kill(self) -> None:
        """End its process; what it has started ends with it."""
        with suppress(Exception):  # a client of Ray raises its own errors for an actor that is gone
            ray.kill(self._actor)

    def _start(self) -> None:
        place = PlacementGroupSchedulingStrategy(self._group, self._bundle)
        kind = ray.remote(_Actor).options(
            num_cpus=0,
            num_gpus=self._gpus,
            max_concurrency=THREADS,
            scheduling_strategy=place,
            runtime_env={"env_vars": ENVIRONMENT},
        )
        self._is_lost = False
        self._actor: Any = kind.remote(self._part)
        self._facts: NodeFacts | None = None
        self._facts = self.call("facts", timeout_s=PLACE_S)

    def _lost(self, text: str) -> LostNodeError:
        self._is_lost = True
        first, *others = text.strip().splitlines()
        why = others[-1] if others and "creation task" in first else first
        return LostNodeError(
            f"node {self.name} was lost: {why}",
            "see `ray status` and the logs of Ray on that node; what it measured is not counted",
        )


@contextmanager
def heartbeats(nodes: Sequence[RayNode]) -> Iterator[None]:
    """Nodes that know inside the `with` that the driver is there; those of a driver that is gone end."""
    end = threading.Event()

    def send() -> None:
        while True:
            for node in nodes:
                node.send_heartbeat()
            if end.wait(HEARTBEAT_S):
                return

    sending = threading.Thread(target=send, name="send heartbeats", daemon=True)
    sending.start()
    try:
        yield
    finally:
        end.set()
        sending.join()


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster at `address`, or to the one that runs here for `auto`.

    Raises:
        UsageError: There is none.
    """
    if ray.is_initialized():
        yield
        return
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, ignore_reinit_error=True)
    except (RayError, ConnectionError, OSError, RuntimeError, ValueError, ImportError) as error:
        why = str(error).strip().partition("\n")[0]
        start = "start Ray with `ray start --head` on one node, and `ray start --address HOST:6379` on others"
        install = "pip install 'rosebench[cluster]'"  # without this extra, Ray cannot connect to `ray://`
        lacks = isinstance(error, ImportError)
        raise UsageError(f"--cluster {address}: {why}", install if lacks else start) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end the process without its clean-up
    try:
        yield
    finally:
        try:
            ray.shutdown()
        except KeyboardInterrupt:
            ray.shutdown()  # one that is left half done ends the process
            raise


@contextmanager
def placed(bundles: list[Bundle]) -> Iterator[PlacementGroup]:
    """A place on a node of its own for each bundle of resources, until the end of the `with`.

    Raises:
        UsageError: The cluster has no such nodes, others use them, or it can have none.
    """
    try:
        group = placement_group(bundles, strategy="STRICT_SPREAD")
    except (RayError, ValueError) as error:  # such as a name that Ray has for itself
        raise UsageError(
            f"Ray places nothing on {resource_text(bundles)}: {error}", "change --engine-needs"
        ) from None
    try:
        if not group.wait(PLACE_S):
            raise UsageError(
                f"the cluster has no {len(bundles)} free nodes with {resource_text(bundles)}",
                "see `ray status`; ask for less with --load-nodes, --side-by-side or --engine-needs",
            )
        yield group
    finally:
        with suppress(Exception):  # the cluster may be gone
            remove_placement_group(group)


def resource_text(bundles: list[Bundle]) -> str:
    """`CPU 2, GPU 1 and CPU 2`."""
    texts = dict.fromkeys(", ".join(f"{k} {v:g}" for k, v in bundle.items()) for bundle in bundles)
    return " and ".join(texts)


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
        pids: list[int] = self._node.call("pids", timeout_s=SILENCE_S)
        return pids

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
