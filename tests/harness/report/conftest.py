"""Run folders as a benchmark writes them, from made-up requests through the real schemas and statistics."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.metrics.contrast import compare_points
from harness.metrics.estimates import measure
from harness.metrics.samples import by_load, split
from harness.metrics.summary import SummaryInputs, summarize
from harness.records.columns import CHUNKS, REQUESTS
from harness.runs.reader import Run, load_run
from harness.schema.base import Verdict
from harness.schema.limits import Slo
from harness.schema.load import ClosedLoop, Load, RequestRate, TraceLoad, load_text
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Comparison, OnlineResults, Skipped
from harness.schema.run_info import LaunchRecord, RunInfo, TraceRecord, Versions
from tests.harness.offline_runs import write_batches


@dataclass(frozen=True)
class Engine:
    """An engine of made-up speed: mean prefill and step in seconds, and the tokens a chunk carries."""

    name: str
    label: str
    prefill_s: float
    step_s: float
    chunk: int = 1
    variant: str | None = None


ENGINES = (
    Engine("roseinfer", "roseinfer", 0.018, 0.0045),
    Engine("roseinfer", "roseinfer (-mp async admit)", 0.027, 0.0047, variant="no-mp-async-admit"),
    Engine("vllm", "vLLM", 0.046, 0.0062),
    Engine("sglang", "SGLang", 0.038, 0.0060, chunk=2),
)
SCALES = (0.4, 0.8, 1.6)
ABOUT = "Tokenizes texts where HTTP is handled."


def make_cell(
    cell: int, engine: Engine, scale: float, repeat: int, n: int, longest: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of requests and chunks: Poisson arrivals to a server whose slowness grows with the load."""
    load = np.random.default_rng(7)
    rng = np.random.default_rng([cell, 11])
    sched = np.cumsum(load.exponential(0.12, n)) * scale
    sched -= sched[0]
    tokens = np.clip(load.lognormal(3.2, 0.6, n), 1, longest).astype(int)
    inputs = np.clip(load.lognormal(5.2, 0.8, n), 8, 900).astype(int)
    crowd = 1 + 0.9 / scale * (0.7 + 0.3 * np.sin(sched / sched[-1] * 9))
    sent = sched + rng.exponential(5e-5, n)
    first = sent + engine.prefill_s * crowd * rng.lognormal(0, 0.45, n) * (0.5 + inputs / 400)
    chunks = -(-tokens // engine.chunk)
    owner = np.repeat(np.arange(n), chunks)
    carried = np.full(len(owner), engine.chunk)
    ends = np.cumsum(chunks) - 1
    carried[ends] = tokens - engine.chunk * (chunks - 1)
    step = engine.step_s * engine.chunk * (0.6 + 0.4 * crowd[owner]) * rng.lognormal(0, 0.2, len(owner))
    step[ends - chunks + 1] = 0
    elapsed = np.cumsum(step)
    t = first[owner] + elapsed - elapsed[ends - chunks + 1][owner]
    requests = {
        "cell": np.full(n, cell), "engine": [engine.name] * n, "variant": [engine.variant] * n,
        "label": [engine.label] * n, "load": [load_text(TraceLoad(scale=scale))] * n,
        "repeat": np.full(n, repeat),
        "request": np.arange(n), "input_tokens": inputs, "output_tokens": tokens, "t_sched": sched,
        "t_sent": sent, "t_first": first, "t_last": t[ends], "t_end": t[ends] + 2e-4,
        "completion_tokens": tokens, "prompt_tokens": inputs, "chunks": chunks,
        "token_source": ["token_ids"] * n, "status": np.full(n, 200), "error": [None] * n,
        "error_detail": [None] * n, "finish_reason": ["length"] * n, "queue_wait_ms": [None] * n,
        "prefill_ms": [None] * n, "client": np.zeros(n, int), "connection_reused": np.ones(n, bool),
    }  # fmt: skip
    return requests, {"cell": np.full(len(t), cell), "request": owner, "t": t, "tokens": carried}


def fail(columns: dict[str, Any], chunks: dict[str, Any], position: int, kind: str, detail: str) -> None:
    """Turn a success into a failure without an answer."""
    for name in ("t_first", "t_last", "completion_tokens", "prompt_tokens", "status"):
        columns[name] = [None if i == position else value for i, value in enumerate(columns[name])]
    columns["chunks"][position] = 0
    columns["error"][position], columns["error_detail"][position] = kind, detail
    columns["finish_reason"][position] = columns["token_source"][position] = None
    kept = chunks["request"] != position
    for name in chunks:
        chunks[name] = chunks[name][kept]


def make_online(
    folder: Path,
    *,
    engines: Sequence[Engine] = ENGINES,
    scales: Sequence[float] = SCALES,
    closed: Sequence[int] = (),
    rates: Sequence[float] = (),
    repeats: int = 2,
    n: int = 120,
    longest: int = 96,
    faults: bool = True,
    trace: str = "azure-conv-2023",
) -> Path:
    """An online run folder, answers of up to `longest` tokens; of a closed loop with `closed` in flight, or
    at request rates.

    With faults, a cell of vLLM has failures and an engine is skipped.
    """
    folder.mkdir(parents=True)
    loads: dict[float, Load] = {1 / k: ClosedLoop(concurrency=k) for k in closed}
    loads |= {1 / rate: RequestRate(req_per_s=rate) for rate in rates}
    scales = list(loads) or scales
    cells = [(e, scale, repeat) for repeat in range(repeats) for e in reversed(engines) for scale in scales]
    tables = [make_cell(cell, *identity, n, longest) for cell, identity in enumerate(cells)]
    for (_, scale, _), (columns, _) in zip(cells, tables, strict=True):
        if loads:
            columns["load"] = [load_text(loads[scale])] * n
    if faults:
        bad = cells.index((next(engine for engine in engines if engine.name == "vllm"), scales[0], 0))
        for position, kind in ((5, "timeout"), (17, "timeout"), (30, "disconnected")):
            fail(*tables[bad], position, kind, "nothing came for 300 s")
    requests = pa.concat_tables(
        pa.table({name: columns.get(name, [None] * n) for name in REQUESTS.names}, schema=REQUESTS)
        for columns, _ in tables
    )
    chunks = pa.concat_tables(pa.table(columns, schema=CHUNKS) for _, columns in tables)
    pq.write_table(requests, folder / "requests.parquet")
    pq.write_table(chunks, folder / "chunks.parquet")
    raw = requests.to_pandas(), chunks.to_pandas()
    skipped = Skipped(
        engine="trtllm", label="TensorRT-LLM", reason="needs an NVIDIA GPU", hint="run on a machine with one"
    )
    results = OnlineResults(
        meta=info(
            "online",
            [e.label for e in engines],
            engines=[{"name": e.name, "variant": e.variant} for e in engines],
            scales=[1.0] if loads else list(scales),
            concurrency=list(closed) or None,
            request_rate=list(rates) or None,
            repeats=repeats,
            n=n,
            slo={"ttft_ms": 200, "tpot_ms": 12},
        ).model_copy(
            update={"trace": TRACE.model_copy(update={"name": trace, "requests": n, "changed": n * 3 // 8})}
        ),
        summaries=summarize(split(*raw), SummaryInputs(slo=Slo(ttft_ms=200, tpot_ms=12))),
        comparisons=compare_points([measure(repeats) for repeats in by_load(split(*raw))]),
        skipped=[skipped] if faults else [],
    )
    (folder / "online_results.json").write_text(results.model_dump_json(indent=1))
    (folder / "run.json").write_text(results.meta.model_dump_json(indent=1))
    return folder


def make_offline(folder: Path, repeats: int = 3) -> Path:
    """An offline run folder: roseinfer through its server process and in-process, and vLLM."""
    speeds = {"roseinfer (server)": 3.1, "roseinfer (in-process)": 2.9, "vLLM": 4.2}
    seconds = {
        (label, repeat): mean * (1 + 0.02 * float(np.sin(repeat * 5 + mean)))
        for repeat in range(repeats)
        for label, mean in speeds.items()
    }
    batch = info("offline", list(speeds), num_prompts=128, input_len=256, output_len=64)
    return write_batches(folder, batch, seconds, (256, 64))


TRACE = TraceRecord(
    name="azure-conv-2023",
    origin="https://github.com/Azure/AzurePublicDataset",
    licence="CC-BY-4.0",
    citation="Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024",
    sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    requests=200,
    fit="clip",
    changed=74,
    input_tokens=51_234,
    output_tokens=6_812,
)


def info(kind: Any, labels: Sequence[str], **settings: Any) -> Any:
    """What a run writes about itself."""
    command = ["bench", kind, "--engines", "roseinfer,roseinfer@no-mp-async-admit,vllm", "--seed", "0"]
    launches = [
        LaunchRecord(
            engine=label.split()[0].lower(),
            label=label,
            about=ABOUT if "async admit" in label else "",
            version="0.1.0",
            in_process=kind == "offline" and "(server)" not in label,
            ready_s=4.2,
            argv=["python", "-m", label.split()[0].lower(), "serve", "--model", "gpt2", "--port", "0"],
            settings={"dtype": "bf16", "max_num_seqs": 256 if label == "vLLM" else 64, "prefix_cache": False},
        )
        for label in labels
    ]
    given = {"model": "random:gpt2", "device": "cpu", "dtype": "bf16", "seed": 0, **settings}
    return RunInfo(
        kind=kind,
        created="2025-03-01T12:00:00Z",
        command=command,
        settings=OnlineSettings.model_validate(given),
        environment={
            "cpu": {
                "model": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
                "physical_cores": 1,
                "logical_cores": 2,
                "usable_cores": 2,
            },
            "memory_total": 8_330_000_000,
            "kernel": "6.1.0",
            "gpus": [],
        },
        versions=Versions(
            rosebench="0.1.0", roseinfer="0.1.0", vllm="0.11.0", torch="2.11.0", python="3.11.7"
        ),
        launches=launches,
    )


@pytest.fixture(scope="session")
def online_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_online(tmp_path_factory.mktemp("runs") / "online_20250301_120000")


@pytest.fixture(scope="session")
def offline_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_offline(tmp_path_factory.mktemp("runs") / "offline_20250301_123000")


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium, whose console and requests are read as logs."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def window(browser: Any) -> Iterator[Callable[[int, int], None]]:
    """Gives the browser's window so many pixels until the test has ended; a narrow one is that of a phone."""

    def sized(width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    yield sized
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="session")
def run(online_run: Path) -> Run:
    return load_run(online_run)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One engine at one load in one repeat."""
    folder = tmp_path_factory.mktemp("small") / "run"
    return load_run(make_online(folder, engines=ENGINES[:1], scales=[1.0], repeats=1, n=60, faults=False))


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two engines with 1, 8 and 64 requests in flight."""
    folder = tmp_path_factory.mktemp("swept") / "run"
    return load_run(
        make_online(folder, engines=ENGINES[:2], closed=[8, 1, 64], repeats=1, n=100, faults=False)
    )


def comparison(
    a: str,
    b: str,
    ratio: float,
    ci: tuple[float, float] | None,
    scale: float = 0.4,
    metric: str = "ttft_ms",
    statistic: str = "p90",
    chance: bool = False,
) -> Comparison:
    """Of two engines; an interval without 1 is a difference, unless the correction makes it `chance`."""
    low_high = None if ci is None else not ci[0] <= 1 <= ci[1]
    verdict: Verdict = "not enough data" if ci is None else "no difference"
    if low_high and not chance:
        verdict = "better" if (ratio < 1) == (metric != "output_tok_per_s") else "worse"
    return Comparison(
        a=a, b=b, load=TraceLoad(scale=scale), metric=metric, statistic=statistic,
        value_a=ratio, value_b=1, ratio=ratio, ci=ci, difference=low_high, verdict=verdict, comparisons=39,
    )  # fmt: skip
