"""A Ray cluster's nodes, divided between engines and clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil

import ray
from pydantic import JsonValue

from harness.cluster.node_facts import WHOLE, Part, this_kernel
from harness.cluster.ray_nodes import Bundle, RayNode, connected, heartbeats, placed
from harness.cluster.ray_testbed import RayTestbed
from harness.cluster.shared_folder import SharedFolder
from harness.cluster.testbed import Machines, ReportStatus
from harness.cluster.this_machine import calibrated
from harness.engines.placement import parallel_of
from harness.engines.selection import Selection, select_engines
from harness.errors import UsageError
from harness.schema.machines import Calibration, Host
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import RUNNING_SERVER
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
            if (first.installations, first.placement) != (other.installations, other.placement):
                raise UsageError(
                    f"node {engine.name} is not equal to {engines[0].name}: {other.equipment} instead of "
                    f"{first.equipment}",
                    "name equal nodes with --engine-needs, or leave out --side-by-side",
                )
        return first

    def use_model(self, name: str, tokenizer: str) -> None:
        for testbed in self.testbeds:
            testbed.model, testbed.tokenizer = name, tokenizer

    def calibration(self, settings: OnlineSettings, report: ReportStatus) -> Calibration | None:
        senders = list(dict.fromkeys(node for _, nodes in self._sides for node in nodes))
        calibrations = self._calibrations(senders)
        missing = [node for node in senders if calibrations[node.name] is None]
        if missing and settings.calibrate:
            report(f"ceiling and timing error of the client on {', '.join(node.name for node in missing)}")
            # one node of each machine: the others read what it stores
            first = {node.facts.machine: node for node in missing}.values()
            measuring = [(node, node.begin("ask", calibrated, True, _silent)) for node in first]
            for node, reference in measuring:
                node.result(reference)
            calibrations = self._calibrations(senders)
        self.hosts = [
            host.model_copy(update={"calibration": calibrations.get(host.name)}) for host in self.hosts
        ]
        stored = [calibration for calibration in calibrations.values() if calibration is not None]
        if len(stored) < len(calibrations):
            return None
        return min(stored, key=lambda calibration: calibration.ceiling(1).chunks_per_s)

    def _calibrations(self, nodes: list[RayNode]) -> dict[str, Calibration | None]:
        """Read the stored calibration of each node."""
        return {node.name: node.call("ask", calibrated, False, _silent) for node in nodes}

    def clients(self, selection: Selection) -> tuple[int, int]:
        if any(engine in nodes for engine, nodes in self._sides):
            return 1, len(selection.placement.cpus.client or (0,))
        senders = min((nodes for _, nodes in self._sides), key=len)
        return len(senders), max(len(senders), sum(node.facts.physical_cores for node in senders))

    def environment(self) -> dict[str, JsonValue]:
        engine = self._sides[0][0] or self._sides[0][1][0]
        description: dict[str, JsonValue] = engine.call("ask", environment)
        return description

    def _check(self) -> None:
        """Check that every node runs this version, and give each a name of its own."""
        nodes = [node for testbed in self.testbeds for node in testbed.nodes]
        source, names = source_hash(), [node.facts.name for node in nodes]
        for node in nodes:
            if node.facts.source != source:
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
        BenchError: The folder to share cannot be used.
    """
    assert settings.cluster is not None
    with connected(settings.cluster), ExitStack() as stack:
        places = wanted_places(settings)
        group = stack.enter_context(placed(places.bundles))
        sides: list[tuple[RayNode | None, list[RayNode]]] = []
        for engine, part, loads in places.sides:
            gpus = places.gpus if engine is not None else 0
            nodes = [
                RayNode(group, bundle, gpus if bundle == engine else 0, part if bundle == engine else WHOLE)
                for bundle in dict.fromkeys([*([] if engine is None else [engine]), *loads])
            ]
            for node in nodes:
                stack.callback(node.close)
            first = None if engine is None else nodes[0]
            sides.append((first, nodes[1:] if first and len(nodes) > 1 else nodes))
        machines = RayMachines(sides)
        stack.enter_context(heartbeats([node for testbed in machines.testbeds for node in testbed.nodes]))
        if settings.share is not None:
            share = SharedFolder.below(settings.share)
            stack.callback(share.remove)
            for testbed in machines.testbeds:
                testbed.share = share
                for node in testbed.nodes:
                    share.take(node.call("ask", share.put, b""))
        yield machines


@dataclass(frozen=True)
class Places:
    """Places on the nodes of a cluster.

    Attributes:
        bundles: Resources, each of a node of its own.
        sides: The bundle of each side's engine, None without one; the part of that node which is its; the
            bundles of the nodes that send.
        gpus: Of each engine.
    """

    bundles: list[Bundle]
    sides: list[tuple[int | None, Part, list[int]]]
    gpus: float


def wanted_places(settings: OnlineSettings) -> Places:
    """Choose the places of engines and clients. A place takes as many CPUs as every node has, so that no node
    has two.

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
    needs: Bundle = {}
    if settings.device != "cpu" and not any(running) and any(resources.get("GPU") for resources in usable):
        needs["GPU"] = parallel_of(settings).devices
    needs |= settings.engine_needs
    sides, together, places = settings.side_by_side, settings.engines_per_node, len(usable)
    gpus = needs.get("GPU", 0)
    engines = 0 if all(running) else ceil(sides / together)
    engine_node: Bundle = {"CPU": cpus} | needs | ({"GPU": gpus * together} if gpus else {})
    if places == 1 and sides == 1 and not settings.load_nodes:
        return Places(
            [engine_node if engines else {"CPU": cpus}], [(0 if engines else None, WHOLE, [0])], gpus
        )
    least = engines + sides * (settings.load_nodes or 1)
    if places < least:
        raise UsageError(
            f"the cluster has {places} nodes with CPUs, and {least} are needed",
            "add nodes, or ask for less with --load-nodes or --side-by-side",
        )
    loads = settings.load_nodes or (places - engines) // sides
    return Places(
        [engine_node] * engines + [{"CPU": cpus}] * (sides * loads),
        [
            (
                side // together if engines else None,
                Part(side % together, together),
                [engines + side * loads + number for number in range(loads)],
            )
            for side in range(sides)
        ],
        gpus,
    )


def _silent(what: str) -> None:
    """Nobody watches a calibration on a node."""
