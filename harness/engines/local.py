"""An engine that the harness starts: its interpreter, its command, and its names of settings."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import JsonValue

from harness.engines.base import Engine, EngineSettings, EngineVariant, Installation, Launch, Missing, Server
from harness.engines.find import REPORTED, Place, find_code, output_of, place, probe, supported_flags
from harness.engines.placement import Parallel, only_gpus
from harness.engines.process.engine_server import EngineServer
from harness.engines.selfreport import SelfReport
from harness.engines.server_pages import Route
from harness.engines.variants import load_file
from harness.errors import EngineError, UsageError, failure_text
from harness.paths import ELSEWHERE
from harness.plugins import adapter_call
from harness.schema.fairness import EngineFact
from harness.schema.profile import Tool
from harness.schema.run_info import Code, LaunchRecord
from harness.telemetry.gpu import memory_restored

GIVE_ONE = "leave this engine out, or give it sizes of 1"


def flags(options: Mapping[str, JsonValue]) -> list[str]:
    """Return the command line of `options` by the names of a Python API: `True` is a switch, `False` none."""
    arguments: list[str] = []
    for name, value in options.items():
        if value is not False:
            arguments.append("--" + name.replace("_", "-"))
            arguments += [] if value is True else [str(value)]
    return arguments


@dataclass(frozen=True)
class OfflineFactory:
    """Makes the engine's in-process API: `target` is `module:callable` or `file.py:callable`, called with
    `arguments` by the engine's own interpreter (protocol: harness/engines/run_worker.py)."""

    target: str
    arguments: dict[str, JsonValue]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CaptureRequest:
    """A capture of `steps` engine steps, with its torch profiler into `folder` (absolute), or with marks
    and windows for nsys."""

    tool: Tool
    folder: Path
    steps: int
    stacks: bool = False


@dataclass(frozen=True)
class EngineProfiler:
    """A profiler of an engine: options of its server, and routes that start and stop it.

    `args` and `env` are added to the server's. Without routes the profiler needs no start; with `start` alone
    it stops by itself after the wanted number of steps. Its files are whole when they have not changed for
    `settled_s` after that: most are written after the answer to `stop`.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start: Route | None = None
    stop: Route | None = None
    settled_s: float = 1.0


class LocalEngine(Engine):
    """Base of the engines that run on this machine. `command` is all that an adapter must have."""

    #: Values of options by their newest name: the version that brought it, and the name before.
    renamed: ClassVar[Mapping[str, tuple[str, str]]] = {}
    #: Names of the package with the engine; the first that is installed is used.
    distributions: ClassVar[tuple[str, ...]]
    #: Its name in the versions of result files; empty: `name`.
    version_name: ClassVar[str] = ""
    #: Beginnings of the names of environment variables that it reads.
    env_prefixes: ClassVar[tuple[str, ...]] = ()
    #: Distributions that its server needs too.
    needs: ClassVar[tuple[str, ...]] = ()
    #: How to install it; shown as a hint.
    install: ClassVar[str]
    #: Module that is imported to check that it runs; its package is the engine's code. Empty: its help is
    #: shown to check that it runs, and its code is unknown.
    module: ClassVar[str] = ""
    #: Whether its server runs in Python, whose stacks can be sampled.
    in_python: ClassVar[bool] = True
    #: Arguments with which its program prints every option of the server.
    help_arguments: ClassVar[tuple[str, ...]] = ("--help",)
    #: Whether a batch is measured through its server too.
    batches_by_server: ClassVar[bool] = False
    #: Whether its in-process API takes prompts and answers of different lengths in one batch.
    mixes_lengths: ClassVar[bool] = True
    #: A warning to users, if there is one.
    caveat: ClassVar[str] = ""
    #: Options that turn its prefix cache on and off, where they are not in all of its versions.
    cache_options: ClassVar[Mapping[bool, str]] = {}
    #: Options for `Parallel.tensor` and `Parallel.data`; empty: it cannot.
    parallel_options: ClassVar[tuple[str, str]] = ("", "")
    #: Options for `max_running_requests` and `gpu_memory_utilization`; empty: it has none.
    capacity_options: ClassVar[tuple[str, str]] = ("", "")
    #: Whether it computes on NVIDIA GPUs alone.
    gpus_only: ClassVar[bool] = False
    #: Whether its in-process API has replicas too.
    offline_replicas: ClassVar[bool] = False
    #: Pages with the server's settings, read once when it is ready.
    pages: ClassVar[tuple[str, ...]] = ()

    def find(self) -> Installation | Missing:
        return self.inspect(place(self.name))

    def inspect(self, where: Place) -> Installation | Missing:
        """Return the engine in an environment, which must have one of `distributions` and all of `needs`."""
        versions = probe(where, [*self.distributions, *self.needs, *REPORTED])
        distribution = next((name for name in self.distributions if name in versions), None)
        absent = [name for name in self.needs if name not in versions]
        if distribution is None or absent:
            names = ", ".join(absent) if distribution else " or ".join(self.distributions)
            return Missing(self.name, f"{where.how} ({where.python}) has no {names}", self.install)
        reported = {name: versions[name] for name in ("python", *REPORTED) if name in versions}
        version = versions[distribution]
        return Installation(self.name, version, distribution, where.python, where.how, where.env, reported)

    def installed(self) -> Installation:
        """Return the engine, as `find` does. Raises EngineError if it is not installed."""
        installation = self.find()
        if isinstance(installation, Missing):
            raise EngineError(f"{self.display} is not installed: {installation.reason}", installation.hint)
        return installation

    def program(self, installation: Installation) -> list[str]:
        """The server's program, before its arguments."""
        return [str(installation.python), "-m", self.module]

    @abstractmethod
    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        """The server's command, without the variant's settings. Numbers and paths in it become text."""

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        """The in-process API, without the variant's settings. Raises EngineError if there is none."""
        raise EngineError(f"{self.display} has no in-process API", "use `bench online`")

    def prepare(self, settings: EngineSettings) -> None:
        """Create missing files that `command` names, other than the model's folder. Raises EngineError."""

    def facts(self, report: SelfReport) -> dict[str, EngineFact]:
        """The resolved settings that the server reports, by the keys of
        `harness.fairness.ledger.SETTINGS`."""
        return {}

    def profiler(self, installation: Installation, capture: CaptureRequest) -> EngineProfiler | None:
        """Return the way in which its own profiler captures that, if it has one. nsys needs no support by the
        engine."""
        return EngineProfiler() if capture.tool == "nsys" else None

    @property
    def in_process(self) -> bool:
        """Return whether it has an API that takes a batch of prompts without a server."""
        return type(self).offline is not LocalEngine.offline

    def unsupported_parallelism(self, parallel: Parallel, device: Literal["cuda", "cpu"]) -> str | None:
        """Return the reason why its server cannot compute like that; None if it can."""
        tensor, data = self.parallel_options
        if parallel.tensor > 1 and not tensor:
            return f"{self.display} has no tensor parallelism"
        if parallel.data > 1 and not data:
            return f"{self.display} has no replicas behind one port"
        return None

    def sizes(self, settings: EngineSettings) -> dict[str, JsonValue]:
        """Values by option: GPUs, or on a CPU processes, where there are several; the requests that run at a
        time and the share of a GPU's memory, where these are set."""
        parallel = settings.parallelism
        processes = [size if size > 1 else None for size in (parallel.tensor, parallel.data)]
        options = (*self.parallel_options, *self.capacity_options)
        values = (*processes, settings.max_running_requests, settings.gpu_memory_utilization)
        pairs = zip(options, values, strict=True)
        return {option: value for option, value in pairs if option and value is not None}

    def api_sizes(self, settings: EngineSettings) -> dict[str, JsonValue]:
        """Values of `sizes` by argument of the in-process API, which has the option's name."""
        sizes = self.sizes(settings).items()
        return {option.lstrip("-").replace("-", "_"): value for option, value in sizes}

    def check_parallelism(self, settings: EngineSettings) -> None:
        """Raises EngineError where the engine cannot compute on the device, or in as many processes."""
        parallel, threads = settings.parallelism, settings.threads
        if self.gpus_only and settings.device != "cuda":
            hint = f"use --device cuda, or leave out {self.name}"
            raise EngineError(f"{self.display} runs on NVIDIA GPUs only", hint)
        if why := self.unsupported_parallelism(parallel, settings.device):
            raise EngineError(why, GIVE_ONE)
        if threads is not None and threads < parallel.devices:
            raise EngineError(
                f"{settings.engine_variant.label} computes in {parallel.devices} processes, "
                f"and --cpu-threads is {threads}",
                f"give --cpu-threads {parallel.devices} or more",
            )

    def check_offline(self, settings: EngineSettings) -> None:
        """Raises EngineError where its in-process API cannot."""
        self.check_parallelism(settings)
        if settings.parallelism.data > 1 and not self.offline_replicas:
            raise EngineError(f"{self.display} has no replicas in its in-process API", GIVE_ONE)

    def gpus(self, settings: EngineSettings) -> dict[str, str]:
        """Variables that let it see the GPUs that it is to compute on."""
        return only_gpus(settings.parallelism, os.environ) if settings.device == "cuda" else {}

    def server(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        """The command with the variant's settings, on as many GPUs as they say.

        Raises:
            UsageError: the variant has an option that the installed version does not have.
            EngineError: it cannot compute on so many GPUs.
        """
        variant = settings.engine_variant.variant
        self.check_parallelism(settings)
        sizes = [str(word) for pair in self.sizes(settings).items() for word in pair]
        self.check_options(installation, settings.engine_variant, settings.prefix_cache, sizes)
        with adapter_call(self.display, "command"):
            launch = self.command(installation, settings, port)
        values = {**self.gpus(settings), **launch.env, **installation.env, **variant.env}
        env = {name: str(value) for name, value in values.items()}
        chosen = [self.named(word, installation) for word in variant.args]
        argv = tuple(map(str, (*launch.argv, *sizes, *chosen)))
        if "PYTHONPATH" in env and argv[1:2] == ("-m",):  # which looks in the current folder first
            path = os.pathsep.join((env["PYTHONPATH"], str(Path.cwd())))
            env |= {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        return replace(launch, argv=argv, env=env)

    def named(self, value: JsonValue, installation: Installation) -> JsonValue:
        """Return an option's value by the name that the installed version has for it."""
        if not isinstance(value, str) or value not in self.renamed:
            return value
        since, earlier = self.renamed[value]
        return value if installation.is_at_least(since) else earlier

    def check_options(
        self,
        installation: Installation,
        engine_variant: EngineVariant,
        prefix_cache: bool,
        sizes: Iterable[str] = (),
    ) -> None:
        """Raises UsageError unless the installed version has all options of the variant, of the prefix cache
        and among `sizes`. `prefix_cache` is the run's."""
        of_cache = self.cache_options.get(engine_variant.caches_prefixes(prefix_cache), "")
        words = (*engine_variant.variant.args, of_cache, *sizes)
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        if options and (unknown := sorted(options - self.flags(installation))):
            raise UsageError(
                f"{engine_variant.ref}: {self.display} {installation.version} has no option "
                f"{', '.join(unknown)}",
                f"change {self.config_file.name} or the settings, or install a version that has it",
            )

    def help_command(self, installation: Installation) -> list[str]:
        """The command that prints every option of the server."""
        return [*self.program(installation), *self.help_arguments]

    def flags(self, installation: Installation) -> frozenset[str]:
        """Return every `--option` of the installed version's server. It is not kept for engines in our own
        environment, which may be under development."""
        keep = installation.python != Path(sys.executable)
        return supported_flags(installation, self.help_command(installation), keep)

    def launch_record(self, start: EngineSettings, installation: Installation, **fields: Any) -> LaunchRecord:
        """Make the record of a start of `installation`. `fields` are those that the start knows."""
        return start.engine_variant.launch_record(
            version=installation.version,
            released=load_file(self.config_file).released.get(installation.version),
            gpus=start.gpus,
            **fields,
        )

    @contextmanager
    def open(
        self, settings: EngineSettings, log: Path, change: Callable[[Launch], Launch] = lambda launch: launch
    ) -> Iterator[Server]:
        """Open a server as `Engine.open` does; `change` can alter the command."""
        installation = self.installed()
        engine_variant = settings.engine_variant
        launch = self.server(installation, settings, port=0)
        record = self.launch_record(
            settings, installation, codes=self.codes(installation, launch.argv, launch.env)
        )

        def facts(report: SelfReport) -> dict[str, EngineFact]:
            with adapter_call(self.display, "facts"):
                return self.facts(report)

        with adapter_call(self.display, "prepare"):
            self.prepare(settings)
        memory_check = memory_restored(engine_variant.label) if settings.device == "cuda" else nullcontext()
        with (
            memory_check,
            EngineServer(
                lambda port: change(self.server(installation, settings, port)),
                record,
                log,
                settings.host,
                settings.cpus,
                self.pages,
                facts,
                self.env_prefixes,
            ) as server,
        ):
            yield server

    def codes(self, installation: Installation, argv: tuple[str, ...], env: Mapping[str, str]) -> list[Code]:
        """The code that a process with these arguments and, added to the inherited ones, variables runs."""
        package, here = self.module.partition(".")[0], argv[1:2] == ("-m",)
        return find_code(installation.python, package, os.environ | env, here=here) if package else []

    def proof(self, installation: Installation) -> list[str]:
        """A short command that succeeds if the installed engine runs."""
        if not self.module:
            return self.help_command(installation)
        return [str(installation.python), "-c", f"{ELSEWHERE}import {self.module}"]

    def trouble(self, installation: Installation) -> str | None:
        """Return the reason why the installed engine does not run; None if it does."""
        try:
            output_of(self.proof(installation), os.environ | installation.env, timeout_s=180)
        except (OSError, subprocess.SubprocessError) as error:
            return failure_text(error)
        return None
