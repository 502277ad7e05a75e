"""The tables of docs/notes, measured anew: each switch of roseinfer, and other engines.

    python -m benchmarks.cpu_tables ablations --estimate      # what it would measure, and how long
    python -m benchmarks.cpu_tables ablations > ablations.md  # about 15 minutes
    python -m benchmarks.cpu_tables peers > peers.md          # two and a half hours
    python -m benchmarks.cpu_tables peers --only 124M --engines roseinfer,vllm --repeats 2

Every load is one `bench online`, in which its engines are measured in turn; the others are held against the
first. Markdown goes to stdout as each load ends, everything else to stderr. What follows `--` goes to every
`bench online`. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bench_online import FailedRunError, bench_online, parse_arguments
from harness.metrics.percentiles import missing
from harness.report.text.numbers import DASH, decimals, number, plural
from harness.schema.online_summary import Distribution, OnlineSummary
from harness.schema.results import Comparison, OnlineResults
from harness.schema.verdict import Verdict

PEERS = ("roseinfer", "vllm", "sglang", "transformers", "llamacpp")
#: The other convention: a compute thread on every core, none left to HTTP and the client.
ALL_CORES = tuple(f"{name}@all-cores" for name in PEERS)
#: Results that are published have cells of 30 s or more.
LONG = ("--min-duration", "30")
#: Seconds until a server is ready and warm, on two cores.
START_S = {"roseinfer": 6, "vllm": 40, "sglang": 20, "transformers": 10, "llamacpp": 6}
COLUMNS = {
    "TTFT p50, ms": ("ttft_ms", "p50"),
    "TTFT p99, ms": ("ttft_ms", "p99"),
    "TPOT p50, ms": ("tpot_ms", "p50"),
    "output tok/s": ("output_tok_per_s", "output_tok_per_s"),
    "CPU ms a token": ("cpu_ms_per_output_token", "cpu_ms_per_output_token"),
}
TITLES = {"ablations": "The switches of roseinfer on a CPU", "peers": "Engines compared on a CPU"}
OPPOSITE: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}


@dataclass(frozen=True)
class Load:
    """One run. `cell_s` is about how long all scales take with roseinfer, `others_s` with another engine."""

    name: str
    options: tuple[str, ...]
    engines: tuple[str, ...]
    cell_s: float
    others_s: float = 0

    def asked(self, repeats: int) -> list[str]:
        """The options of `bench online`."""
        engines = ("--engines", ",".join(self.engines), "--repeats", str(repeats))
        return ["--device", "cpu", "--dtype", "bf16", *self.options, *engines]

    def seconds(self, repeats: int) -> float:
        """About how long the run takes."""
        names = [engine.partition("@")[0] for engine in self.engines]
        cells = sum(self.cell_s if name == "roseinfer" else self.others_s for name in names)
        return repeats * (cells + sum(START_S[name] for name in names))


def closed(clients: str, n: int, input_len: int = 128, output_len: int = 64) -> tuple[str, ...]:
    lengths = ("--input-len", str(input_len), "--output-len", str(output_len))
    return ("--concurrency", clients, "--n", str(n), *lengths)


def replay(trace: str, scales: str, n: int) -> tuple[str, ...]:
    clip = ("--fit", "clip", "--max-output-len", "64")
    return ("--trace", trace, "--scales", scales, "--n", str(n), *clip)


def variants(*names: str) -> tuple[str, ...]:
    return ("roseinfer", *(f"roseinfer@{name}" for name in names))


def ablations(out: Path) -> list[Load]:
    """Each switch that does something on a CPU, on a load that it matters to. 16.3M parameters, bf16."""
    shared = out / "shared-prefixes.csv"
    rows = [f"{0.06 * i:.2f},576,32,{i * 7 % 8}" for i in range(100)]
    header = ["# block_size: 512", "arrival_s,input_tokens,output_tokens,prefix_blocks"]
    shared.write_text("\n".join([*header, *rows, ""]))
    decode = variants(
        "no-cpu-kernels", "no-cpu-linear", "no-packed-weights", "small-pages", "all-cores", "bound-threads",
        "overlap-schedule", "stream-interval-4", "four-front-ends", "max-batch-4", "max-active-4",
    )  # fmt: skip
    prompts = variants(
        "batched-prefill", "one-prompt", "chunked-prefill", "chunked-prefill-128", "prefill-first",
        "no-mixed-steps", "pack", "prefill-sdpa",
    )  # fmt: skip
    tokenize = variants("no-mp-async-admit", "one-tokenize-worker")
    long, prefixes = replay("builtin", "0.8", 100), replay(str(shared), "1", 100)
    loads = [
        Load("8 clients, 128 tokens in, 64 out", closed("8", 100), decode, 5),
        Load("long prompts among decoding requests: built-in trace, scale 0.8", long, prompts, 11),
        Load("512 of 576 prompt tokens shared", prefixes, variants("prefix-cache"), 8),
        Load("the built-in trace as text", (*long, "--text-prompts"), tokenize, 11),
    ]
    model = ("--model", "random:gpt2-tiny", "--max-model-len", "1024")
    return [replace(load, options=(*model, *load.options)) for load in loads]


def peers(out: Path) -> list[Load]:
    """The engines that are installed, on two shapes with random weights and a model with its own: one client,
    eight, and a busy hour of conversations."""
    small, large = ("--model", "random:gpt2-tiny"), ("--model", "random:gpt2")
    trained = ("--model", "smollm2-135m", "--max-model-len", "1024")
    loop, azure = (*closed("1,8", 12), *LONG), "azure-2023-conv-busy"
    return [
        Load("SmolLM2-135M, 128 in, 64 out", (*trained, *loop), PEERS, 80, 120),
        Load("16.3M, 128 in, 64 out", (*small, *loop), PEERS, 70, 75),
        Load("124M, 128 in, 64 out", (*large, *loop), PEERS, 80, 100),
        Load("SmolLM2-135M, a thread on every core", (*trained, *loop), ALL_CORES, 80, 120),
        Load("16.3M, a thread on every core", (*small, *loop), ALL_CORES, 70, 75),
        Load("16.3M, Azure conversations", (*small, *replay(azure, "1,2", 100)), PEERS, 38, 40),
        Load("124M, Azure conversations", (*large, *replay(azure, "8,16", 10)), PEERS, 30, 35),
    ]


def head(title: str, repeats: int, results: OnlineResults) -> str:
    """What all tables have in common."""
    cpu = results.meta.environment["cpu"]
    assert isinstance(cpu, dict)
    versions = [
        f"{launch.label} {launch.version}" for launch in results.meta.launches if launch.variant is None
    ]
    return (
        f"# {title}\n\n{cpu['model']}, {cpu['usable_cores']} cores that client and engines share; "
        f"{', '.join(versions)}; bf16, {plural(repeats, 'repeat')} of each, every one with a fresh "
        "server. After a value come its change against the first row, the 95 % interval of that change, and "
        "the verdict at 5 %, corrected for all comparisons of the run. "
        f"{DASH}: the sample is too small.\n"
    )


def section(load: Load, repeats: int, results: OnlineResults) -> str:
    """A Markdown table for each load, and what must be known to read it."""
    pooled = [summary for summary in results.summaries if summary.repeat is None]
    levels = sorted({summary.load for summary in pooled})
    asked = [Path(word).name if "/" in word else word for word in load.asked(repeats)]
    parts = [f"## {load.name}\n", f"    bench online {' '.join(asked)}\n"]
    for level in levels:
        here = [summary for summary in pooled if summary.load == level]
        parts += [f"{str(level).capitalize()}:\n"] if len(levels) > 1 else []
        parts += [f"| engine | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
        parts += [
            f"| {summary.label} | {' | '.join(cells(summary, here, results.comparisons))} |"
            for summary in here
        ]
        parts += [
            "",
            *(
                f"{summary.label}: invalid, {'; '.join(summary.invalid_reasons)}\n"
                for summary in here
                if not summary.valid
            ),
        ]
    return "\n".join(
        [*parts, *(f"{fault.label}: {fault.reason.partition(':')[0]}\n" for fault in results.skipped)]
    )


def cells(
    summary: OnlineSummary, here: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> list[str]:
    """Values of an engine, each with its change against the first one, the interval, and the verdict."""
    texts = []
    for metric, statistic in COLUMNS.values():
        values = [value(each, metric, statistic) for each in here]
        text = number(value(summary, metric, statistic), decimals(values))
        found = [
            c for c in comparisons if (c.load, c.metric, c.statistic) == (summary.load, metric, statistic)
        ]
        texts.append(
            text
            + next(
                (change(c, summary.label) for c in found if {c.a, c.b} == {here[0].label, summary.label}), ""
            )
        )
    return texts


def value(summary: OnlineSummary, metric: str, statistic: str) -> float | None:
    """None where the sample does not support it."""
    found = getattr(summary, metric)
    if isinstance(found, Distribution):
        return None if missing(int(statistic[1:]), found.n) else getattr(found, statistic)
    return None if found is None else float(found)


def change(comparison: Comparison, label: str) -> str:
    """`, -5 % (-9 to -1), better`: of the engine with that label against the other."""
    if comparison.ci is None:
        return ""
    turned = comparison.b == label
    ratio, low, high = (
        (1 / comparison.ratio, 1 / comparison.ci[1], 1 / comparison.ci[0])
        if turned
        else (comparison.ratio, *comparison.ci)
    )
    verdict = OPPOSITE.get(comparison.verdict, comparison.verdict) if turned else comparison.verdict
    return f", {100 * ratio - 100:+.0f} % ({100 * low - 100:+.0f} to {100 * high - 100:+.0f}), {verdict}"


def main() -> int:
    """0 when every load was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["ablations", "peers"])
    parser.add_argument("--repeats", type=int, default=3, help="of every engine")
    parser.add_argument("--only", default="", help="loads whose name holds this")
    parser.add_argument("--engines", help="these instead of all, comma separated; the first is held against")
    parser.add_argument("--estimate", action="store_true", help="only say what would be measured")
    parser.add_argument("--out", type=Path, default=Path("outputs/measured"))
    given, options = parse_arguments(parser)
    given.out.mkdir(parents=True, exist_ok=True)
    repeats = given.repeats
    loads = [
        load
        for load in (ablations if given.what == "ablations" else peers)(given.out)
        if given.only in load.name
    ]
    if given.engines:
        engines = tuple(given.engines.split(","))
        if unknown := {engine.partition("@")[0] for engine in engines} - set(START_S):
            parser.error(f"--engines: no {', '.join(sorted(unknown))}; there are {', '.join(START_S)}")
        loads = [replace(load, engines=engines) for load in loads]
    for load in loads:
        print(
            f"{load.seconds(repeats) / 60:5.1f} min: {load.name}: {', '.join(load.engines)}", file=sys.stderr
        )
    print(f"about {sum(load.seconds(repeats) for load in loads) / 60:.0f} minutes in all", file=sys.stderr)
    if given.estimate:
        return 0
    measured = 0
    for load in loads:
        try:
            run = bench_online([*load.asked(repeats), *options], given.out, partly=True)
        except FailedRunError as error:
            print(error, file=sys.stderr)
            continue
        results = OnlineResults.model_validate_json((run / "online_results.json").read_bytes())
        if not measured:
            print(head(TITLES[given.what], repeats, results))
        print(section(load, repeats, results), flush=True)
        print(run, file=sys.stderr)
        measured += 1
    return 0 if measured == len(loads) else 1


if __name__ == "__main__":
    sys.exit(main())
