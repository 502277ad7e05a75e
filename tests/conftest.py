"""What every test shares."""

import functools
import gc
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Modules and tests live to the end: the garbage collector need not look through them again and again.
gc.disable()

# Nor need each of the processes that tests start compile the project again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Other tests are no reason to measure nothing.
os.environ["BENCH_ANYWAY"] = "1"

# Workers share the cores: a thread of one that waits does not spin for long while another one computes, as in
# the processes of roseinfer's server.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# A job that a script starts in the background ignores some signals and hands that down to all that it starts;
# tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

#: A loaded machine is no fault of the code. Under CI the same examples are tried each time, elsewhere new
#: ones: 25 of a property, 1,000 with `--hypothesis-profile thorough`.
for profile, examples in {"patient": 25, "thorough": 1000}.items():
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize="CI" in os.environ,
    )
settings.load_profile("patient")

# Without a GPU, kernels are tested in Triton's interpreter, which has to be on when Triton is imported; the
# processes that tests start are not to inherit it.
if importlib.util.find_spec("triton") and not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import knobs

    del os.environ["TRITON_INTERPRET"]
    knobs.runtime.interpret = True

#: What the current test did that makes a test an integration test.
went_outside: list[str] = []


def note(owner: Any, name: str) -> None:
    """Have calls of `owner.name` noted."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*arguments: Any, **settings: Any) -> Any:
        went_outside.append(f"{owner.__name__}.{name} {arguments[1:2]}")
        return original(*arguments, **settings)

    setattr(owner, name, noted)


note(subprocess.Popen, "__init__")
for name in ("fork", "posix_spawn"):
    note(os, name)
for name in ("bind", "connect", "connect_ex"):
    note(socket.socket, name)


@pytest.fixture(scope="session")
def integration() -> None:
    """For fixtures that start processes or open sockets: a test that uses one is an integration test."""


def in_parts(items: list[pytest.Function], parts: int) -> list[pytest.Function]:
    """`items` in an order of which each of `parts` equal parts begins with as many slow ones."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    order: list[pytest.Function] = []
    for left in range(parts, 0, -1):
        first, size = len(slow) // left, (len(slow) + len(quick)) // left
        order += slow[:first] + quick[: size - first]
        del slow[:first], quick[: size - first]
    return order


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Every test is marked integration or unit. A worker begins with one part of them, and takes from the end
    of another's when it has none left: slow ones come first in each, so that workers end together."""
    for item in items:
        kinds = {name for name in ("unit", "integration") if item.get_closest_marker(name)}
        if len(kinds) == 2:
            raise pytest.UsageError(f"{item.nodeid} is marked unit and integration")
        if not kinds:
            outside = any(map(item.get_closest_marker, ("peer", "gpu", "browser")))
            item.add_marker("integration" if outside or "integration" in item.fixturenames else "unit")
    items[:] = in_parts(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_collection_finish() -> None:
    """Garbage is collected from here on, but a tenth as often as usual: sessions share much that stays.

    To each logger that does not propagate, of which torch has dozens, pytest would add its handlers three
    times in every test.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.freeze()  # the interpreter's end looks through all that is left


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    went_outside.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None]:
    yield
    if went_outside and item.get_closest_marker("unit"):
        pytest.fail(f"this unit test is an integration test, mark it: {went_outside[0]}", pytrace=False)
