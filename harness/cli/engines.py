"""`bench engines`: which engines are installed, what would be started, and how to install the rest."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

import rosemodels
from harness.cli.terminal import FAILED, Terminal
from harness.cli.terminal_table import listing
from harness.engines.base import EngineSettings, Installation, Missing
from harness.engines.find import engines_folder, place
from harness.engines.local import LocalEngine
from harness.engines.placement import (
    MEMORY_UTILIZATION,
    RUNNING_REQUESTS,
    Parallel,
    resolve_cpu_threads,
    resolve_device,
    resolve_dtype,
)
from harness.engines.registry import BROKEN, ENGINES, LOCAL, get_engine, get_engine_variant, look_for
from harness.engines.variants import TORCH_CONFIG, check_name, load_file, load_variants
from harness.environments.install import find_bundle, make_bundle, read_size, unfinished
from harness.environments.install import install as install_engine
from harness.environments.unpack import UnpackError
from harness.environments.unpack import unpack as unpack_bundle
from harness.errors import BenchError, UsageError
from harness.models.model_folder import ModelFolder, resolve
from harness.schema.setting_types import EngineRef
from harness.schema.settings import Device, Dtype
from harness.telemetry import gpu

#: Shown where no model is given, and the context of a model that is not here.
_ANY_MODEL, _CONTEXT = "MODEL", 1024
#: Of an engine, named in the list of engines.
MOST_VARIANTS = 8

app = typer.Typer(no_args_is_help=True, help="List, check, show and install engines.")
console = Terminal(soft_wrap=True)


@app.command("list")
def list_engines(
    name: Annotated[str | None, typer.Argument(help="an engine whose variants are described")] = None,
) -> None:
    """List engines, where they are installed, and their variants."""
    if name is not None:
        variants = sorted(load_variants(get_engine(name)).items())
        described = [(key, variant.about or " ".join(variant.args) or "-") for key, variant in variants]
        console.print(listing(f"Variants of {name}", ("variant", "what it does"), described))
        return
    rows = []
    for engine in ENGINES.values():
        result = look_for(engine)
        version, where = (
            (result.version, result.how) if isinstance(result, Installation) else ("-", result.reason)
        )
        names = sorted(load_variants(engine))
        listed = ", ".join(names) if len(names) <= MOST_VARIANTS else f"{len(names)}, see list NAME"
        rows.append((engine.name, version, where, listed or "-"))
    rows += [(name, "-", error.message, "-") for name, error in BROKEN.items()]
    console.print(listing("Engines", ("engine", "version", "where", "variants"), rows))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="NAME or NAME@VARIANT")],
    model: Annotated[str, typer.Option(help="named model or model folder")] = _ANY_MODEL,
    device: Annotated[Device, typer.Option(help="device")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="dtype of weights and activations")] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="context in tokens; default: the model's")
    ] = None,
    prefix_cache: Annotated[bool, typer.Option(help="turn the prefix cache on")] = False,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="GPUs that share each layer")] = 1,
    data_parallel_size: Annotated[int, typer.Option(min=1, help="replicas behind one port")] = 1,
) -> None:
    """Show the exact command and environment that would be started."""
    ref = _reference(name)
    engine = _local(ref)
    installation = engine.find()
    if missing := isinstance(installation, Missing):
        console.print(f"# not installed: {installation.reason}; {installation.hint}")
        installation = Installation(ref.name, "unknown", engine.distributions[0], Path("PYTHON"), "nowhere")
    if engine.caveat:
        console.print(f"# {engine.display}: {engine.caveat}")
    engine_variant = get_engine_variant(ref)
    if about := engine_variant.variant.about:
        console.print(f"# {engine_variant.label}: {about}")
    folder = _model_folder(model)
    if folder is None and model != _ANY_MODEL:
        console.print(f"# there is no model {model} here")
    where = resolve_device("auto") if device == "auto" else device
    parallel = Parallel(tensor_parallel_size, data_parallel_size)
    threads = resolve_cpu_threads("auto", where, None, parallel.devices)
    equal = where == "cuda" and not missing  # its options are known only where it is installed
    settings = EngineSettings(
        engine_variant=engine_variant,
        model=folder.path if folder else Path(model),
        served_name=folder.served_name if folder else "model",
        device=where,
        dtype=resolve_dtype(dtype, where),
        max_model_len=max_model_len or (folder.max_model_len if folder else _CONTEXT),
        prefix_cache=prefix_cache,
        cpu_threads=None if threads == "auto" else threads,
        parallel=parallel,
        max_running_requests=RUNNING_REQUESTS if equal else None,
        gpu_memory_utilization=MEMORY_UTILIZATION if equal else None,
    )
    try:
        launch = engine.server(installation, settings, port=8000)
    except BenchError:
        if not missing:
            raise
        console.print("# its command depends on its version: install it to see the command")
        raise typer.Exit(FAILED) from None
    assignments = [f"{key}={shlex.quote(value)}" for key, value in sorted(launch.env.items())]
    console.print(" ".join([*assignments, shlex.join(launch.argv)]))


def _model_folder(model: str) -> ModelFolder | None:
    """The folder of a named model or of one that is here; nothing is downloaded."""
    if model in rosemodels.names() or (Path(model).expanduser() / "config.json").is_file():
        return resolve(model)
    return None


def _reference(name: str) -> EngineRef:
    try:
        ref = EngineRef.model_validate(name)
    except ValidationError:
        check_name(name)  # says which name a misspelled one is close to
        raise
    check_name(ref.name)
    return ref


def _local(ref: EngineRef) -> LocalEngine:
    engine = get_engine(ref.name)
    if not isinstance(engine, LocalEngine):
        raise UsageError(f"{ref.name} is not started by bench", f"choose one of {', '.join(LOCAL)}")
    return engine


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="engine")],
    version: Annotated[
        str | None, typer.Option(help="version of the engine; default: the tested one")
    ] = None,
    cpu: Annotated[
        bool | None, typer.Option("--cpu/--cuda", help="device to install for; default: that of this machine")
    ] = None,
) -> None:
    """Install an engine into an environment of its own. An interrupted installation is continued."""
    engine = _local(_reference(name))
    build = resolve_device("auto") if cpu is None else ("cpu" if cpu else "cuda")
    made = install_engine(engine, build, version)
    console.print(f"{engine.name} {made.version}: {made.python}")
    if (decides := place(engine.name)).python.parent != engines_folder() / engine.name / "bin":
        console.print(f"note: bench uses {decides.python} instead ({decides.how})")


@app.command("bundle")
def bundle(
    name: Annotated[str, typer.Argument(help="engine, or torch, which several engines share")],
    out: Annotated[Path, typer.Option(help="folder of the bundle")],
    part_size: Annotated[str, typer.Option(help="size of the largest part, such as 45M")] = "45M",
    version: Annotated[
        str | None, typer.Option(help="version of the engine; default: the first that can be packed")
    ] = None,
) -> None:
    """Pack an engine for a host without a network. `unpack.py` in the bundle installs it there."""
    config = TORCH_CONFIG if name == "torch" else _local(_reference(name)).config_file
    size = read_size(part_size)
    version, recipe = find_bundle(name, config, version)
    manifest = make_bundle(name, version, recipe, config.parent, out, size)
    parts = sorted(out.glob("part-*"))
    total = sum(part.stat().st_size for part in parts) / 2**20
    console.print(f"{manifest.parent}: {name} {version}, {len(parts)} parts, {total:.0f} MiB")


@app.command("unpack")
def unpack(
    bundle: Annotated[Path, typer.Argument(help="folder of the bundle")],
    python: Annotated[str, typer.Option(help="Python interpreter with torch")] = sys.executable,
) -> None:
    """Install an engine from a bundle. Without bench: `python3 BUNDLE/unpack.py --to FOLDER`."""
    try:
        folder = unpack_bundle(bundle, engines_folder(), python)
    except UnpackError as error:
        raise UsageError(str(error)) from None
    console.print(f"{folder / 'bin' / 'python'}")


def age(engine: LocalEngine, version: str) -> str:
    """Say by how many days an installed version is older than the newest one known; nothing if it is not."""
    released = load_file(engine.config_file).released
    newest = max(released, key=released.__getitem__, default=version)
    if version == newest:
        return ""
    older = f"{(released[newest] - released[version]).days} days newer" if version in released else "known"
    return f"{engine.display} {newest} of {released[newest]} is {older}"


@app.command("doctor")
def doctor() -> None:
    """Check every engine: is it installed, does it run, how to fix it. Exits with 3 if one is broken."""
    broken = False
    for engine in LOCAL.values():
        installation = look_for(engine)
        if isinstance(installation, Missing):
            console.print(f"{engine.name}: not installed: {installation.reason}\n  hint: {installation.hint}")
        else:
            trouble = engine.trouble(installation)
            broken = broken or trouble is not None
            state = "runs" if trouble is None else f"does not run: {trouble}\n  hint: {engine.install}"
            where = f"{installation.how} ({installation.python})"
            console.print(
                f"{engine.name}: {installation.distribution} {installation.version}, {where}: {state}"
            )
            if note := age(engine, installation.version):
                console.print(f"  note: {note}")
        if engine.caveat:
            console.print(f"  note: {engine.caveat}")
        for folder in unfinished(engine.name):
            console.print(f"  {folder.name} is only partly installed\n  hint: {engine.install}")
    for error in BROKEN.values():
        broken = True
        console.print(f"{error.message}\n  hint: {error.hint}")
    names = [f"{device['name']} (driver {device['driver']})" for device in gpu.describe()]
    console.print(f"GPU: {', '.join(names) or 'none'}")
    raise typer.Exit(3 if broken else 0)
