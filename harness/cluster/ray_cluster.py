"""A Ray cluster's nodes, divided between engines and clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import ray
from pydantic import JsonValue

from harness.cluster.node import this_kernel
from harness.cluster.ray_nodes import Bundle, RayNode, connected, placed
from harness.cluster.ray_testbed import RayTestbed
from harness.cluster.testbed import Machines, ReportStatus
from harness.cluster.this_machine import calibrated
from harness.engines.auto_settings import parallel_of
from harness.engines.selection import Selection, select_engines
from harness.errors import UsageError
from harness.schema.calibration import Calibration
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.hosts import Host
from harness.schema.online_settings import OnlineSettings
from harness.telemetry.machine import environment
from harness.telemetry.revision import source_hash


class RayMachines(Machines):
    """Nodes with their processes running."""

    def __init__(self, sides: Sequence[tuple[RayNode | None, Sequence[RayNode]]]) -> None:
        self._sides = sides
        self.testbeds: list[RayTestbed] = [RayTestbed(engine, senders) for engine, senders in sides]
        self._check()
        self.hosts = [
            Host(
                name=node.name,
                address=node.facts.address,
                role="load" if node is not engine else "both" if node in senders else "engine",
                side=side,
                cores=node.facts.cores,
                niceness=node.facts.niceness,
            )
            for side, (engine, senders) in enumerate(sides)
            for node in self.testbeds[side].nodes
        ]

    def select(self, settings: OnlineSettings) -> Selection:
        """On the first node with an engine; the others must have the same."""
        engines = [engine for engine, _ in self._sides if engine is not None]
        if not engines:
            return select_engines(settings)
        alone = not any(engine in senders for engine, senders in self._sides)
        selections: list[Selection] = [
            engine.call("ask", select_engines, settings, alone) for engine in engines
        ]
        first = selections[0]
        for engine, other in zip(engines[1:], selections[1:], strict=True):
            if (first.found, first.placement) != (other.found, other.placement):
                raise UsageError(
                    f"node {engine.name} is not equal to {engines[0].name}: {other.placement} and "
                    f"{[found.version for found in other.found]} instead of {first.placement} and "
                    f"{[found.version for found in first.found]}",
                    "name equal nodes with --engine-needs, or leave out --side-by-side",
                )
        return first

    def use_model(self, name: str, tokenizer: str) -> None:
        for testbed in self.testbeds:
            testbed.model, testbed.tokenizer = name, tokenizer

    def calibration(self, settings: OnlineSettings, report: ReportStatus) -> Calibration | None:
        senders = list(dict.fromkeys(node for _, nodes in self._sides for node in nodes))
        report(f"ceiling and timing error of the client on {', '.join(node.name for node in senders)}")
        # one node of each machine: others on it read what it stores
        first = {node.facts.machine: node for node in senders}.values()
        measuring = [(node, node.begin("ask", calibrated, settings.calibrate, _silent)) for node in first]
        for node, reference in measuring:
            node.result(reference)
        found: dict[str, Calibration | None] = {
            node.name: node.call("ask", calibrated, False, _silent) for node in senders
        }
        self.hosts = [host.model_copy(update={"calibration": found.get(host.name)}) for host in self.hosts]
        known = [calibration for calibration in found.values() if calibration is not None]
        if len(known) < len(found):
            return None
        return min(known, key=lambda calibration: calibration.ceiling(1).chunks_per_s)

    def clients(self, selection: Selection) -> tuple[int, int]:
        if any(engine in nodes for engine, nodes in self._sides):
            return 1, len(selection.placement.cpus.client or (0,))
        senders = min((nodes for _, nodes in self._sides), key=len)
        return len(senders), max(len(senders), sum(node.facts.physical_cores for node in senders))

    def environment(self) -> dict[str, JsonValue]:
        engine = self._sides[0][0] or self._sides[0][1][0]
        found: dict[str, JsonValue] = engine.call("ask", environment)
        return found

    def _check(self) -> None:
        """Every node runs this version, and has a name of its own."""
        nodes = [node for testbed in self.testbeds for node in testbed.nodes]
        own, names = source_hash(), [node.facts.name for node in nodes]
        for node in nodes:
            if node.facts.source != own:
                raise UsageError(
                    f"node {node.facts.name} has another version of rosebench than this machine",
                    "install the same one on every node, with the extra: pip install 'rosebench[cluster]'",
                )
        if len(set(names)) < len(names):
            for number, node in enumerate(nodes):
                node.suffix = f"-{number}"
        for testbed in self.testbeds:
            kernels = {node.facts.machine for node in testbed.nodes}
            if kernels == {this_kernel()} and len(testbed.nodes) == 1:
                testbed.host = "127.0.0.1"


@contextmanager
def ray_machines(settings: OnlineSettings) -> Iterator[RayMachines]:
    """The nodes of the cluster that `settings` name, with a process on each that ends with the `with`.

    Raises:
        UsageError: There is no such cluster, or it has too few nodes that are free.
    """
    assert settings.cluster is not None
    with connected(settings.cluster), ExitStack() as stack:
        bundles = wanted_bundles(settings)
        group = stack.enter_context(placed([bundle for side in bundles for bundle in side]))
        sides: list[tuple[RayNode | None, list[RayNode]]] = []
        position = 0
        started = any(engine.name != RUNNING_SERVER for engine in settings.engines)
        for side in bundles:
            nodes: list[RayNode] = []
            for bundle in side:
                gpus = bundle.get("GPU", 0) if started and not nodes else 0
                node = RayNode(group, position, gpus)
                stack.callback(node.close)
                nodes.append(node)
                position += 1
            engine = nodes[0] if started else None
            sides.append((engine, nodes[1:] if started and len(nodes) > 1 else nodes))
        yield RayMachines(sides)


def wanted_bundles(settings: OnlineSettings) -> list[list[Bundle]]:
    """What is asked of the cluster: for each side, the place of the engine, then of the nodes that send.

    A place takes as many CPUs as every node has, so that no node has two. One node is one place.

    Raises:
        UsageError: There are too few nodes, or engines that run already beside ones that are started.
    """
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    usable = [resources for resources in alive if resources.get("CPU")]
    if not usable:
        raise UsageError("no node of the cluster has CPUs", "start one with `ray start --address HOST:6379`")
    running = [engine.name == RUNNING_SERVER for engine in settings.engines]
    if any(running) and not all(running):
        raise UsageError(
            "--cluster measures engines that it starts, or servers that run already",
            "make two runs, and compare them with `bench compare`",
        )
    cpus = min(resources["CPU"] for resources in usable)
    needs: Bundle = {"CPU": cpus}
    if settings.device != "cpu" and not any(running) and any(resources.get("GPU") for resources in usable):
        needs["GPU"] = parallel_of(settings).devices
    needs |= settings.engine_needs
    sides, places = settings.side_by_side, len(usable)
    engines = 0 if all(running) else sides
    if places == 1 and sides == 1 and not settings.load_nodes:
        return [[needs if engines else {"CPU": cpus}]]
    least = engines + sides * (settings.load_nodes or 1)
    if places < least:
        raise UsageError(
            f"the cluster has {places} nodes with CPUs, and {least} are needed",
            "add nodes, or ask for less with --load-nodes or --side-by-side",
        )
    loads = settings.load_nodes or (places - engines) // sides
    return [[*([needs] if engines else []), *[{"CPU": cpus}] * loads] for _ in range(sides)]


def _silent(what: str) -> None:
    """Nobody watches a calibration on a node."""
