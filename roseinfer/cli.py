"""The command line: `roseinfer serve`, `generate`, and the benchmarks without HTTP."""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

import typer

from roseinfer.config import ConfigError, EngineConfig, RankError
from roseinfer.options import HELP, PlainCommand, with_settings
from roseinfer.request.params import RequestError, SamplingParams
from roseinfer.server.config import ServerConfig
from roseinfer.server.process.launch import launch

#: Limits of the system that a user can raise, and how.
_LIMITS = {
    errno.EMFILE: "allow more open files (`ulimit -n`)",
    errno.EFBIG: "allow larger files (`ulimit -f`)",
    errno.ENOSPC: "free some space",
}
#: Open files below which not even the event loop begins.
_LEAST_FILES = 32

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    help="Serve a model, or run it without a server.",
)


@app.command("serve", cls=PlainCommand)
@with_settings(EngineConfig, ServerConfig)
def serve_command(engine: EngineConfig, server: ServerConfig) -> None:
    """Serve a model over HTTP, OpenAI-compatible."""
    if (files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < _LEAST_FILES:
        raise ConfigError(f"{files} open files are too few: {_LIMITS[errno.EMFILE]}")
    sys.exit(launch(engine, server))


@app.command("generate", cls=PlainCommand)
@with_settings(EngineConfig, max_active_requests=1, warmup=False)
def generate_command(
    engine: EngineConfig,
    prompt: Annotated[str, typer.Option(help="the text to continue")],
    max_tokens: Annotated[int, typer.Option(min=1, help="tokens to generate")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy")] = 0.0,
    top_p: Annotated[float, typer.Option(help="smallest set of tokens with this mass")] = 1.0,
    sampling_seed: Annotated[int, typer.Option(min=0, help="for temperature above 0")] = 0,
) -> None:
    """Generate one answer and print it as it comes."""
    from roseinfer.llm import LLM

    _check_text(prompt)
    llm = LLM(engine)
    tokenizer = llm.tokenizer
    if tokenizer is None:
        raise ConfigError(f"{engine.model} has no tokenizer; `roseinfer serve` takes token ids")
    ids = tokenizer.encode(prompt)
    text = tokenizer.detokenizer(ids)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=sampling_seed)
    llm.engine.add(0, ids, params)
    while (step := llm.engine.step()) is not None:
        for token in step.tokens.tolist():
            print(text.push(token), end="", flush=True)
    print(text.finish())


@app.command("bench-scheduler", cls=PlainCommand)
@with_settings(EngineConfig, prefix_cache=False)
def bench_scheduler_command(
    engine: EngineConfig,
    mode: Annotated[
        Literal["online", "offline"], typer.Option(help="requests over time, or all at once")
    ] = "offline",
    num_requests: Annotated[int, typer.Option(min=1, help="requests, at most the trace's")] = 128,
    input_len: Annotated[int, typer.Option(min=1, help="tokens of a prompt")] = 256,
    output_len: Annotated[int, typer.Option(min=1, help="tokens of an answer")] = 64,
    request_rate: Annotated[float, typer.Option(min=1e-6, help="requests a second, online")] = 20.0,
    in_flight: Annotated[
        int | None, typer.Option(min=1, help="requests that are unfinished at most; each is then replaced")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="online: CSV with arrival_s, input_tokens, output_tokens")
    ] = None,
    scale: Annotated[float, typer.Option(min=0, help="times of the trace are multiplied by it")] = 1.0,
    simulate: Annotated[bool, typer.Option(help="virtual time: no model, a cost model of steps")] = False,
    cost: Annotated[Path | None, typer.Option(help="simulate: a cost model that --fit-cost wrote")] = None,
    host_us: Annotated[float, typer.Option(min=0, help="simulate: time on the host before a step")] = 60.0,
    fit_cost: Annotated[Path | None, typer.Option(help="write a cost model of the steps here")] = None,
    request_seed: Annotated[int, typer.Option(min=0, help="of prompts and arrivals")] = 0,
) -> None:
    """Run the engine without HTTP, or simulate its scheduler."""
    from roseinfer.bench import replay, scheduler

    if mode == "online" and trace is not None:
        arrivals = replay.from_trace(trace, scale, num_requests, request_seed)
    else:
        rate = request_rate if mode == "online" else None
        arrivals = replay.uniform(num_requests, rate, input_len, output_len, request_seed)
    if simulate:
        outcome = scheduler.simulate(engine, arrivals, scheduler.read_cost(cost), host_us * 1e-6, in_flight)
    else:
        outcome = scheduler.measure(engine, arrivals, in_flight)
    print("\n".join(scheduler.describe(outcome, online=mode == "online" or in_flight is not None)))
    if fit_cost is not None:
        scheduler.write_cost(fit_cost, outcome.steps)


@app.command("bench-streaming", cls=PlainCommand)
@with_settings(EngineConfig, prefix_cache=False)
def bench_streaming_command(
    engine: EngineConfig,
    prompt: Annotated[str, typer.Option(help="the text of every request")] = "The quick brown fox",
    unique_prompts: Annotated[bool, typer.Option(help="put each request's number before the text")] = False,
    pretok: Annotated[bool, typer.Option(help="tokenize before the run")] = False,
    tokenize_workers: Annotated[
        int, typer.Option(min=0, help="threads that tokenize; 0: the one that submits")
    ] = 0,
    num_requests: Annotated[int, typer.Option(min=1, help="requests of a run")] = 16,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="tokens of an answer")] = 64,
    stream_interval: Annotated[int, typer.Option(min=1, help="tokens that are shown together")] = 1,
    submit_interval_ms: Annotated[float, typer.Option(min=0, help="between two requests")] = 0.0,
    submit_schedule: Annotated[
        Literal["absolute", "relative"],
        typer.Option(help="interval from the start, or from the last request"),
    ] = "absolute",
    warmup_runs: Annotated[int, typer.Option(min=0, help="runs that are not counted")] = 1,
    repeat_runs: Annotated[int, typer.Option(min=1, help="runs that are counted together")] = 1,
    stop_on_eos: Annotated[bool, typer.Option(help="end answers at the end-of-text token")] = False,
    nvtx: Annotated[bool, typer.Option(help="ranges for Nsight Systems; sets ROSEINFER_NVTX=1")] = False,
    json: Annotated[Path | None, typer.Option(help="write the results here, too")] = None,
) -> None:
    """Stream without HTTP, and show where the time goes."""
    _check_text(prompt)
    if json is not None and not os.access(json.parent, os.W_OK):
        raise ConfigError(f"cannot write {json}: its folder is not there, or not writable")
    if nvtx:
        os.environ["ROSEINFER_NVTX"] = "1"
    if engine.cuda_graph and not engine.paged_attn:
        print("warning: --cuda-graph needs --paged-attn and stays off", file=sys.stderr)
    from roseinfer.bench import streaming, streaming_report

    load = streaming.StreamingLoad(
        prompt, unique_prompts, pretok, tokenize_workers, num_requests, max_new_tokens,
        stream_interval, submit_interval_ms, submit_schedule, stop_on_eos,
    )  # fmt: skip
    bench = streaming.StreamingBench(engine, load)
    cold = [] if warmup_runs else [("Cold start", [bench.run()])]
    for _ in range(warmup_runs):
        bench.run()
    parts = [*cold, ("Warm", [bench.run() for _ in range(repeat_runs)])]
    shown = {name: streaming_report.figures(bench.engine.info, load, runs) for name, runs in parts}
    for name, values in shown.items():
        if len(shown) > 1:
            print(f"[{name}]")
        print("\n".join(streaming_report.lines(values)))
    if json is not None:
        streaming_report.write(json, shown)


def _check_text(prompt: str) -> None:
    """Raise ConfigError for a prompt that was not UTF-8 on the command line: it has lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise ConfigError("the prompt is not UTF-8")


def main() -> None:
    """The `roseinfer` command. A setting that cannot work, and a lost process of the engine, end it with exit
    code 2 and one line."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # answers may not be in the terminal's encoding
    try:
        app()
    except (ConfigError, RequestError, RankError, MemoryError) as error:
        reason = f"not enough memory: {error}" if isinstance(error, MemoryError) else error
        print(f"roseinfer: {reason}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if (fix := _LIMITS.get(error.errno or 0)) is None:
            raise
        print(f"roseinfer: {error}: {fix}", file=sys.stderr)
        sys.exit(2)
    finally:
        gc.freeze()  # the interpreter's end looks through all that is left for garbage


if __name__ == "__main__":
    main()
