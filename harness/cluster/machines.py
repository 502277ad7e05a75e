"""The machines that a run's settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from harness.cluster.testbed import Machines
from harness.cluster.this_machine import ThisMachine
from harness.errors import UsageError
from harness.schema.online_settings import OnlineSettings


@contextmanager
def machines_of(settings: OnlineSettings) -> Iterator[Machines]:
    """This machine or, with --cluster, nodes of a cluster; nothing is left on them after the `with`.

    Raises:
        UsageError: Ray is not installed here, there is no such cluster, or it has too few free nodes.
    """
    if settings.cluster is None:
        yield ThisMachine()
        return
    if find_spec("ray") is None:
        raise UsageError("--cluster needs Ray, which is not installed", "pip install 'rosebench[cluster]'")
    from harness.cluster.ray_cluster import ray_machines  # nothing else needs Ray

    with ray_machines(settings) as machines:
        yield machines
