"""Every setting can be given on the command line and in a file, and means the same in both."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.cli.options import Output, settings_of, with_settings
from harness.engines.base import Installation, Missing
from harness.engines.registry import LOCAL
from harness.errors import UsageError
from harness.schema.limits import Slo
from harness.schema.load import ClosedLoop, Stage
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import (
    ArrivalProcess,
    EngineRef,
    RampSetting,
    SharedPrefixes,
    Uniform,
    Window,
)
from harness.schema.settings import CommonSettings, OfflineSettings

VLLM = EngineRef(name="vllm")
#: Options by name, whose text means what YAML reads in it.
PLAIN = """
model=random:gpt2 device=cpu dtype=fp32 max_model_len=512 vocab_size=100 seed=7 repeats=3 interleave=no
warmup=5 cpu_threads=4 tensor_parallel_size=2 data_parallel_size=3 max_running_requests=512
prefix_cache=yes figures=no gpu_memory_utilization=default ignore_eos=no settle=1.5 min_duration=30
profile=both profile_only=yes base_url=http://127.0.0.1:9 response_format_share=0.5 tokenizer=none
endpoint=chat wait_ready=5 api_key_env=KEY accuracy=no trace=some.csv fit=scale max_output_len=9 n=12
mixture=clients dataset=jsonl:x turns=live rounds=12 max_think_s=2.5 clients=2 steady_state=yes aa=yes
calibrate=no check_answers=no text_prompts=yes timeout_s=2.5 deadline_s=60 served_model=gpt2
prompt_nonce=7 server_metrics=no cluster=ray://head:10001 load_nodes=2 side_by_side=2 engines_per_node=2
share=s3://bucket/folder metrics_interval=0.5 max_memory=2.5 until_seconds=60 same_prompts=yes
retries=3 max_error_rate=0.02 route=sticky session_header=X-Session
"""
#: The others, with what they mean.
PARSED: dict[str, tuple[str, Any]] = {
    "engines": (
        "vllm,roseinfer@prefix-cache",
        [VLLM, EngineRef(name="roseinfer", variant="prefix-cache")],
    ),
    "out": ("runs", Path("runs")),
    "lora": ("a:2,base:1", {"a": 2.0, "base": 1.0}),
    "response_format": ("schema.json", Path("schema.json")),
    "sampling": ("temperature=0.5,top_k=40", {"temperature": 0.5, "top_k": 40}),
    "body": ('{"user": "me"}', {"user": "me"}),
    "server": ("a=http://h", {"a": "http://h"}),
    "header": ("X-Key=env:KEY", {"X-Key": "env:KEY"}),
    "server_pid": ("4711", "4711"),
    "ca_cert": ("ca.pem", Path("ca.pem")),
    "content_field": ("thoughts", ["thoughts"]),
    "scales": ("0.4,2", [0.4, 2.0]),
    "concurrency": ("4,1", [4, 1]),
    "request_rate": ("0.5,8", [0.5, 8.0]),
    "shared_prefixes": ("groups=4,share=50%,zipf=1", SharedPrefixes(groups=4, share=0.5, zipf=1)),
    "rate_series": ("5:6,2.5:1", [Stage(req_per_s=5, seconds=6), Stage(req_per_s=2.5, seconds=1)]),
    "ramp": ("1:8:60", RampSetting(from_req_per_s=1, to_req_per_s=8, seconds=60)),
    "arrivals": ("gamma:2.5", ArrivalProcess(kind="gamma", cv=2.5)),
    "input_len": ("10", 10),
    "output_len": ("uniform:2:9", Uniform(least=2, most=9)),
    "until": ("10%", 0.1),
    "window": ("1,2.5", Window(start_s=1, end_s=2.5)),
    "engine_needs": ("GPU:2,highmem", {"GPU": 2.0, "highmem": 1.0}),
    "price": ("prices.yaml", Path("prices.yaml")),
    "slo": ("ttft_ms=200,tpot_ms=50", Slo(ttft_ms=200, tpot_ms=50)),
}
OF_COMMAND: dict[type[CommonSettings], str] = {
    OnlineSettings: "preset=mlperf-server",
    OfflineSettings: "preset=mini-sglang-offline num_prompts=2",
}
#: Options of `bench online` that others need beside them.
BESIDE = {
    "aa": "repeats=2",
    "until": "repeats=3",
    "until_seconds": "repeats=3 until=10%",
    **dict.fromkeys(("engine_needs", "load_nodes", "share"), "cluster=auto"),
    "side_by_side": "cluster=auto repeats=2",
    "engines_per_node": "cluster=auto repeats=2 side_by_side=2",
    "response_format": "ignore_eos=no",
    "response_format_share": "response_format=f.json ignore_eos=no",
    **dict.fromkeys(("api_key_env", "tokenizer", "header", "wait_ready"), "base_url=http://h"),
    **dict.fromkeys(("served_model", "prompt_nonce", "content_field", "server_pid"), "base_url=http://h"),
    "ca_cert": "base_url=https://h",
    "session_header": "base_url=http://h",
    "route": "base_url=http://h session_header=X-Session",
    "max_output_len": "fit=clip",
    **dict.fromkeys(("rounds", "dataset", "input_len", "output_len", "shared_prefixes"), "concurrency=2"),
    **dict.fromkeys(("arrivals", "mixture"), "request_rate=2"),
    "turns": "dataset=builtin concurrency=2",
    "same_prompts": "dataset=builtin concurrency=2",
    "max_think_s": "dataset=builtin turns=recorded concurrency=2",
}


def texts(pairs: str) -> dict[str, str]:
    """Return the texts of `name=text name=text …` by name."""
    return {name: text for name, _, text in (pair.partition("=") for pair in pairs.split())}


def cases() -> Iterator[tuple[type[CommonSettings], str, str, Any]]:
    """Yield each setting of each command, the text of its option, and what that means."""
    for kind, of_command in OF_COMMAND.items():
        plain = {name: (text, yaml.safe_load(text)) for name, text in texts(PLAIN + of_command).items()}
        yield from ((kind, name, *(PARSED | plain)[name]) for name in settings_of(kind))


@pytest.fixture(autouse=True)
def none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of what is installed here: asking an environment takes a process."""
    there = Installation("roseinfer", "1", "rosebench", Path("python"), "here")
    for engine in LOCAL.values():
        found = there if engine.name == "roseinfer" else Missing(engine.name, "it is not here", "bring it")
        monkeypatch.setattr(type(engine), "find", lambda self, found=found: found)


#: A billion letters, by references to references.
BILLION = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join(10 * [f'*a{level - 1}'])}]\n" for level in range(1, 9)
)


@cache
def command_of(kind: type[CommonSettings]) -> tuple[Any, list[CommonSettings]]:
    """A command with these settings as its options, and where it puts what it gets."""
    got: list[CommonSettings] = []
    app = typer.Typer()

    @app.command()
    @with_settings(kind)
    def command(settings: CommonSettings, output: Output) -> None:
        got.append(settings)

    return typer.main.get_command(app), got


def parse(kind: type[CommonSettings], arguments: list[str]) -> CommonSettings:
    """The settings that a command gets from these arguments."""
    command, got = command_of(kind)
    got.clear()
    command.main(["--trust", *arguments], standalone_mode=False)
    return got[0]


def option(name: str, text: str) -> list[str]:
    flag = name.replace("_", "-")
    return {"yes": [f"--{flag}"], "no": [f"--no-{flag}"]}.get(text, [f"--{flag}", text])


@pytest.mark.parametrize(("kind", "name", "text", "meaning"), list(cases()))
def test_a_setting_as_an_option_and_in_a_file(
    kind: type[CommonSettings], name: str, text: str, meaning: Any, tmp_path: Path
) -> None:
    needed = texts(BESIDE.get(name, "")) if kind is OnlineSettings else {}
    words = [word for pair in needed.items() for word in option(*pair)]
    assert getattr(parse(kind, []), name) != meaning
    assert getattr(parse(kind, [*option(name, text), *words]), name) == meaning
    content = {"yes": True, "no": False}.get(text, text)
    for key in (name, name.replace("_", "-")):
        file = tmp_path / f"{key}.yaml"
        file.write_text(yaml.safe_dump({key: content, **needed}))
        assert getattr(parse(kind, ["--config", str(file)]), name) == meaning


@pytest.mark.parametrize(
    ("content", "words", "meanings"),
    [
        ("slo: {ttft_ms: 9}\nwarmup: 3", "", {"slo": Slo(ttft_ms=9), "warmup": 3}),
        (
            "scales: [0.5, 1]\nengines: [vllm]",
            "",
            {"scales": [0.5, 1.0], "engines": [EngineRef(name="vllm")]},
        ),
        *(
            (content, words, {"loads": [ClosedLoop(concurrency=count) for count in counts]})
            for numbers, counts in (("64", [64]), ("[1, 8]", [1, 8]), ("1,8,64", [1, 8, 64]))
            for content, words in (
                (f"concurrency: {numbers}", ""),
                ("", f"--concurrency {numbers.strip('[]').replace(' ', '')}"),
            )
        ),
        # No number to the base of 60.
        ("ramp: 1:8:30", "", {"ramp": RampSetting(from_req_per_s=1, to_req_per_s=8, seconds=30)}),
        # The command line wins, whatever the file has.
        ("n: 5\nseed: 6", "--n 7", {"n": 7, "seed": 6}),
        ("n: many", "--n 3", {"n": 3}),
        ("prefix_cache: true", "--no-prefix-cache", {"prefix_cache": False}),
        ("interleave: false", "--interleave", {"interleave": True}),
        # A setting of started engines has an effect on those beside a running server.
        ("dtype: bf16", "--base-url http://h --engines openai,vllm --prefix-cache", {"prefix_cache": True}),
        ("", "--base-url http://h --tensor-parallel-size 2", {"tensor_parallel_size": 2}),
        ("", "--server a=http://h --server b=HTTPS://i --ca-cert ca.pem", {"ca_cert": Path("ca.pem")}),
        ("", "--base-url http://h", {"engines": [EngineRef(name="openai")]}),
    ],
)
def test_settings_of_a_file_and_the_command_line(
    content: str, words: str, meanings: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "bench.yaml").write_text(content)
    settings = parse(OnlineSettings, ["--config", str(tmp_path / "bench.yaml"), *shlex.split(words)])
    assert {name: getattr(settings, name) for name in meanings} == meanings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--n many",
            "--n: Input should be a valid integer, unable to parse string as an integer (given: 'many')",
        ),
        ("--n 0", "--n: Input should be greater than or equal to 1 (given: '0')"),
        ("--n 99999999999999", "--n: Input should be less than or equal to 10000000"),
        ("--seed 18446744073709551616", "--seed: Input should be less than or equal to 2147483647"),
        ("--min-duration 1e300", "--min-duration: Input should be less than or equal to 2419200"),
        (
            "--warmup some",
            "--warmup: Input should be 'auto' (given: 'some'); Input should be a valid integer",
        ),
        ("--scales 1,x", "--scales: Input should be a valid number"),
        ("--scales 1,-1", "--scales: Input should be greater than 0 (given: '-1')"),
        ("--scales 1,nan", "--scales: Input should be a finite number (given: 'nan')"),
        ("--scales ''", "--scales: must not be empty"),
        *[
            (f"--{option} {text}", f"--{option}: must have a value before and after each comma")
            for option in ("scales", "concurrency", "request-rate", "engines", "lora", "engine-needs")
            for text in ("1,,2", ",1", "1,", ",")
        ],
        *[
            (f"{servers} --ca-cert x", "--ca-cert needs a server whose address begins with https")
            for servers in ("--base-url http://h", "--base-url h:8000", "--server a=http://h --server b=i")
        ],
        ("--api-key-env ''", "--api-key-env: String should have at least 1 character"),
        ("--base-url ''", "--base-url: String should have at least 1 character"),
        ("--cluster x", "--cluster: must be auto, ray://HOST:PORT or HOST:PORT"),
        ("--base-url x --tokenizer ''", "--tokenizer: String should have at least 1 character"),
        *[
            (
                f"--server a=x --server b=y --served-model {text}",
                f"--served-model: '{part}' in '{text}' must be ",
            )
            for text, part in (("a=m,,b=n", ""), ("a=m,c=n", "c=n"), ("a=m,b=", "b="))
        ],
        ("--scales 1,1.0", "--scales: given twice"),
        ("--concurrency 8,8", "--concurrency: given twice"),
        ("--request-rate 1,1", "--request-rate: given twice"),
        ("--engines vllm,vllm", "--engines: given twice: vllm"),
        ("--base-url x --header a=b --header a=c", "--header: given twice: a"),
        ("--concurrency 1,0", "--concurrency: Input should be greater than or equal to 1 (given: '0')"),
        ("--concurrency 1.5", "--concurrency: Input should be a valid integer"),
        ("--engines vlm", "there is no engine 'vlm'"),
        ("--engines 'a b'", "--engines: 'a b' is not NAME or NAME@VARIANT"),
        ("--engines vLLM", "NAME or NAME@VARIANT; names are in small letters, such as "),
        ("--engines auto,vllm", "--engines: auto stands alone: it means roseinfer and every other "),
        ("--engines openai", "engine openai needs --base-url"),
        ("--slo ttft", "--slo: 'ttft' is not a limit"),
        ("--slo ''", "--slo: '' must have a limit"),
        ("--slo ttft_ms=1,", "--slo: 'ttft_ms=1,' must have a limit before and after each comma"),
        ("--slo speed=3", "--slo: 'speed=3' is not a limit"),
        ("--base-url x --header content-length=3", "content-length is part of each request"),
        ("--device tpu", "--device: Input should be 'auto', 'cuda' or 'cpu' (given: 'tpu')"),
        ("--concurrency 2 --scales 1", "--scales excludes --concurrency"),
        ("--concurrency 2 --trace x", "--trace excludes --concurrency"),
        ("--input-len 2", "--input-len needs --concurrency, --request-rate, --ramp or --rate-series"),
        ("--concurrency 2 --input-len x", "'x' is not a number of tokens, or uniform:LEAST:MOST"),
        ("--concurrency 2 --input-len 0", "--input-len: Input should be greater than or equal to 1"),
        ("--concurrency 2 --input-len uniform:9:2", "2 tokens are fewer than 9"),
        ("--concurrency 2 --request-rate 1", "give only one of --concurrency and --request-rate"),
        ("--request-rate 1,0", "--request-rate: Input should be greater than 0"),
        ("--request-rate 1,inf", "--request-rate inf stands alone"),
        ("--arrivals gamma:2", "--arrivals needs --request-rate, --ramp or --rate-series"),
        ("--request-rate 1 --arrivals gamma", "gamma is not poisson, constant or"),
        ("--request-rate 1 --arrivals poisson:2", "poisson:2 is not poisson, constant or"),
        ("--request-rate 1 --arrivals often", "--arrivals: Input should be 'poisson', 'gamma'"),
        ("--ramp 1:2", "--ramp: '1:2' is not FROM:TO:SECONDS"),
        ("--ramp 1:2:9 --n 3", "--n excludes --ramp"),
        ("--dataset builtin", "--dataset needs --concurrency, --request-rate, --ramp or --rate-series"),
        ("--rate-series 1:2,x", "--rate-series: '1:2,x' is neither RATE:SECONDS"),
        ("--shared-prefixes groups=2", "--shared-prefixes: share: Field required"),
        ("--shared-prefixes groups=2,share=100%", "--shared-prefixes: Input should be less than 1"),
        ("--shared-prefixes groups=2,share=10%", "--shared-prefixes needs --concurrency"),
        ("--rate-series 0:2", "--rate-series: one of the rates must be above 0"),
        ("--rate-series 3:2 --n 3", "--n excludes --rate-series"),
        ("--rate-series 3:2 --ramp 1:2:9", "give only one of --ramp and --rate-series"),
        ("--dataset x --concurrency 1 --input-len 2", "--input-len excludes --dataset"),
        ("--concurrency 1 --turns live", "--turns needs --dataset"),
        ("--preset x", "--preset: there is no 'x'"),
        ("--preset mini-sglang-offline", "is one of `bench offline`"),
        ("--mixture x", "--mixture needs --request-rate"),
        ("--request-rate 1 --mixture x --input-len 2", "--input-len excludes --mixture"),
        ("--load-nodes 2", "--load-nodes needs --cluster"),
        ("--cluster auto --side-by-side 2", "--side-by-side 2 needs --repeats 2"),
        ("--cluster auto --engines-per-node 2", "--engines-per-node 2 needs --side-by-side 2"),
        ("--cluster auto --profile torch", "--profile excludes --cluster"),
        ("--max-output-len 2", "--max-output-len needs --fit clip"),
        ("--engines vllm --base-url http://h", "--base-url needs engine openai"),
        *[
            (f"--base-url h {words}", f"{words.split()[0]} has no effect on a server that runs already")
            for words in (
                *("--prefix-cache", "--dtype bf16", "--gpu-memory-utilization 0.5", "--cpu-threads 1"),
                "--max-running-requests 8",
            )
        ],
    ],
)
def test_what_is_wrong_is_one_line(words: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(OnlineSettings, shlex.split(words))
    assert message in raised.value.message
    assert "\n" not in raised.value.message and raised.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("n: many", r"n in .*\.yaml: Input should be a valid integer"),
        ("nn: 1", r"nn in .*\.yaml: there is no key"),
        ("resume: x", r"resume in .*\.yaml: there is no key"),
        ("concurrency: 2\nscales: [1]", r"scales in .*\.yaml excludes --concurrency"),
        ("n: ", r"n in .*\.yaml: Input should be a valid integer \(given: None\)"),
        ("n: yes", r"n in .*\.yaml: must be a value of the setting, not yes or no"),
        ("scales: [1, on]", r"scales in .*\.yaml: must be a value of the setting"),
        ("scales: []", r"scales in .*\.yaml: Value should have at least 1 item"),
        ("prefix_cache: 2", r"prefix_cache in .*\.yaml: Input should be a valid boolean"),
        ("model: 5", r"model in .*\.yaml: Input should be a valid string \(given: 5\)"),
        ("out: [a]", r"out in .*\.yaml: Input is not a valid path"),
        ("engines: [{variant: x}]", r"engines in .*\.yaml: name: Field required"),
        ("engines: [5]", r"engines in .*\.yaml: must be NAME or NAME@VARIANT"),
        ("slo: {ttft_ms: x}", r"slo in .*\.yaml: Input should be a valid number"),
        ("slo: 5", r"slo in .*\.yaml: must be like ttft_ms=200"),
        ("window: {start_s: 1, end: 2}", r"window in .*\.yaml: end_s: Field required; there is no key 'end'"),
        (
            "concurrency: 2\ninput_len: {a: 1}",
            r"input_len in .*; least: Field required; most: Field required; there is no key 'a'",
        ),
        ("concurrency: 2\nlora: 5", r"lora in .*\.yaml: must be NAME:WEIGHT"),
        ("base_url: x\nheader: {A: [1]}", r"header in .*\.yaml: the value of A must be text"),
        ("n: 1" + 80 * "0", r"n in .*\.yaml: Input should be less than or equal to"),
        ("n: 1" + 5000 * "0", "is not YAML: .* has 5001 digits"),
        ("n: 2020-13-41", "is not YAML: month must be in"),
        ("n: " + 5000 * "[", "is not YAML: line 1: it is nested too deeply"),
        ("- n", "holds no settings by name"),
        ('{"schema_version": 1, "command": ["bench", "online"], "n": 3}', "is the record of a run"),
        ("n: [1\nk: 2", "is not YAML: line 2: expected ',' or '\\]', but got ':'"),
        ("n: 1\n\tk: 2", "is not YAML: line 2: found character"),
        ("n: 1\nscales: [1]\nn: 2", "is not YAML: line 3: n is given twice"),
        ("slo: {ttft_ms: 1, ttft_ms: 2}", "is not YAML: line 1: ttft_ms is given twice"),
        ("input-len: 1\ninput_len: 2", "twice, with `-` and with `_`\n  hint: remove one of them$"),
        ("\xff", "is not YAML"),
        (BILLION, "is not YAML: line 4: there are over 10,000 values"),
        ("n: &n [*n]", "is not YAML: line 1: there are over 10,000 values"),
        (f"scales: [{'1,' * 11_000}]", "is not YAML: line 1: there are over 10,000 values"),
        ("#" * (1 << 20) + "\nn: 1", "holds over 1 MiB"),
    ],
)
def test_a_wrong_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bench.yaml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=message) as raised:
        parse(OnlineSettings, ["--config", str(file)])
    assert "\n" not in raised.value.message


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        parse(OnlineSettings, ["--config", str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize("asked", [[], ["--engines", "auto"]])
def test_engines_that_are_installed_are_measured_unasked(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "auto.yaml").write_text("engines: auto\n")

    def engines(kind: type[CommonSettings], *arguments: str) -> list[str]:
        return list(map(str, parse(kind, [*asked, *arguments]).engines))

    assert engines(OnlineSettings) == engines(OfflineSettings) == ["roseinfer", "vllm"]
    there = Installation("sglang", "1", "sglang", Path("python"), "here")
    for name in ("sglang", "llamacpp"):
        monkeypatch.setattr(type(LOCAL[name]), "find", lambda self: there)
    assert engines(OnlineSettings) == ["llamacpp", "roseinfer", "sglang"]
    assert engines(OnlineSettings, "--config", str(tmp_path / "auto.yaml")) == engines(OnlineSettings)
    assert engines(OnlineSettings, "--base-url", "http://h:1") == ["openai"]


def test_a_command_keeps_its_own_options() -> None:
    @with_settings(OfflineSettings)
    def command(settings: OfflineSettings, output: Output, often: bool = False) -> None: ...

    own = {"often", "config", *(each.name for each in fields(Output))}
    assert own | OfflineSettings.model_fields.keys() == set(inspect.signature(command).parameters)
