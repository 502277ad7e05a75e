"""The command: options made from settings, and one line for what cannot work."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
import resource
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import roseinfer
from roseinfer.cli import app, main
from roseinfer.config import ConfigError, EngineConfig, RankError
from roseinfer.server.config import ServerConfig

pytestmark = pytest.mark.integration


CONFIG, WEIGHTS = "config.json", "model.safetensors"


def change_config(folder: Path, **fields: Any) -> None:
    (folder / CONFIG).write_text(json.dumps(json.loads((folder / CONFIG).read_text()) | fields))


def change_tensors(folder: Path, without: str = "", **tensors: torch.Tensor) -> None:
    stored = {f"transformer.{name.replace('_weight', '.weight')}": x for name, x in tensors.items()}
    stored = load_file(folder / WEIGHTS) | stored
    save_file({name: x for name, x in stored.items() if name != without}, folder / WEIGHTS)


def name_a_missing_shard(folder: Path) -> None:
    index = {"weight_map": dict.fromkeys(load_file(folder / WEIGHTS), "model-2.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / WEIGHTS).unlink()


def cut_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:5000])


@pytest.fixture
def folder(text_model: Any, tmp_path: Path) -> Path:
    """A copy of the model's folder."""
    return shutil.copytree(text_model.folder, tmp_path / "model")


def generate(monkeypatch: pytest.MonkeyPatch, *options: str) -> Any:
    """Run `roseinfer generate` in this process, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["roseinfer", "generate", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def one_line(text: str, *words: str) -> None:
    (line,) = text.strip().splitlines()
    assert line.startswith("roseinfer: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / CONFIG).unlink(), [CONFIG]),
        (lambda folder: (folder / CONFIG).write_text("{"), [CONFIG]),
        (lambda folder: (folder / CONFIG).write_text("[1]"), [CONFIG]),
        (partial(change_config, model_type="mamba"), ["mamba", "gpt2"]),
        (partial(change_config, n_head=3), ["n_head 3"]),
        (lambda folder: (folder / WEIGHTS).unlink(), [".safetensors"]),
        (cut_weights, [WEIGHTS]),
        (partial(change_tensors, without="transformer.h.1.ln_1.bias"), ["h.1.ln_1.bias"]),
        (partial(change_tensors, wpe_weight=torch.zeros(2, 2)), ["wpe.weight", "(2, 2)"]),
        (name_a_missing_shard, ["model-2.safetensors"]),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), ["tokenizer"]),
        (lambda folder: (folder / "vocab.json").unlink(), ["token ids"]),
    ],
)
def test_generate_from_a_broken_folder(folder, damage, words, monkeypatch, capsys):
    damage(folder)
    options = ["--model", str(folder), "--prompt", "a", "--max-tokens", "1", "--no-warmup"]
    options += ["--kv-tokens", "1024"]
    assert generate(monkeypatch, *options) == 2
    one_line(capsys.readouterr().err, *words)


def test_a_process_of_the_engine_that_is_lost(text_model, monkeypatch, capsys):
    def lose(config: EngineConfig) -> None:
        raise RankError("rank 1 of the engine has ended (killed by SIGKILL)")

    monkeypatch.setattr("roseinfer.llm.Engine", lose)
    options = ["--model", str(text_model.folder), "--prompt", "a", "--tensor-parallel-size", "2"]
    assert generate(monkeypatch, *options) == 2
    one_line(capsys.readouterr().err, "rank 1 of the engine has ended (killed by SIGKILL)")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "roseinfer.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-model-len", "2000"], ["--max-model-len 2000 is above"]),
        (["--model", "no/such folder"], ["no/such folder"]),
        (["--model", "random:nothing"], ["random:nothing", "random:gpt2"]),
        (["--host", "nowhere.invalid"], ["nowhere.invalid"]),
    ],
)
def test_serve_with_settings_that_cannot_work(options: list[str], words: list[str]) -> None:
    done = run("serve", "--no-warmup", "--port", "0", *options)
    assert done.returncode == 2
    one_line(done.stderr, *words)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--block-size", "0"), ("--prefill-max-batch-size", "0"), ("--chunked-prefill-size", "-1"),
        ("--tensor-parallel-size", "0"), ("--spin-ms", "-1"), ("--rank-timeout-s", "0"),
        ("--stream-interval", "0"), ("--max-buffered-mib", "0"), ("--mp-tokenize-workers", "0"),
        ("--frontend-processes", "65"), ("--data-parallel-size", "65"), ("--grace-seconds", "-1"),
        ("--stall-seconds", "0"), ("--port", "-1"), ("--port", "70000"), ("--threads", "0"),
        ("--threads", "100000"), ("--profile-dir", __file__),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named_by_its_option(option: str, value: str) -> None:
    refused = CliRunner().invoke(app, ["serve", option, value]).exception
    assert isinstance(refused, ConfigError) and str(refused).startswith(f"{option} must be ")


def test_messages_name_options_and_not_fields() -> None:
    """In every text of a ConfigError."""
    names = {field.name for kind in (EngineConfig, ServerConfig) for field in dataclasses.fields(kind)}
    names = {name for name in names if "_" in name}
    calls = [
        node
        for file in Path(roseinfer.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ConfigError"
    ]
    texts = [
        part.value
        for call in calls
        for part in ast.walk(call)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    assert any("--max-model-len" in text for text in texts)
    assert not [text for text in texts if names & set(re.findall(r"\w+", text))]


def test_serve_on_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    one_line(done.stderr, "in use")


def test_serve_says_what_the_engine_says(folder: Path) -> None:
    """A folder that only the engine process finds broken."""
    cut_weights(folder)
    done = run("serve", "--port", "0", "--no-warmup", "--model", str(folder))
    assert done.returncode == 2
    one_line(done.stderr, "model.safetensors")


def test_generate(text_model, monkeypatch, capsys):
    prompt = "The quick brown fox"
    tokens = text_model.greedy([text_model.llm.tokenizer.encode(prompt).tolist()], 6)[0]
    options = ["--dtype", "fp32", "--device", "cpu", "--no-warmup", "--kv-tokens", "1024"]
    options += ["--max-tokens", "6", "--prompt", prompt]
    assert generate(monkeypatch, "--model", str(text_model.folder), *options) == 0
    assert capsys.readouterr().out == text_model.text(tokens) + "\n"


def test_text_that_the_terminal_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    monkeypatch.setattr("roseinfer.cli.app", lambda: print("a\u597d"))
    main()
    assert raw.getvalue() == b"a\\u597d\n"


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("serve", [EngineConfig, ServerConfig]),
        ("generate", [EngineConfig]),
        ("bench-scheduler", [EngineConfig]),
        ("bench-streaming", [EngineConfig]),
    ],
)
def test_every_setting_is_an_option_whose_name_is_not_cut(command: str, kinds: list[Any]) -> None:
    """In a terminal of 80 columns; texts name options, not fields."""
    shown = CliRunner().invoke(app, [command, "-h"], env={"COLUMNS": "80"}).stdout
    assert shown == CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in shown
    assert not [line for line in lines if line.endswith("-")]
    names = {name for line in lines if line.startswith("  --") for name in re.findall(r"--[a-z-]+", line)}
    fields = [field for kind in kinds for field in dataclasses.fields(kind)]
    for field in fields:
        name = field.name.replace("_", "-")
        assert names >= ({f"--{name}", f"--no-{name}"} if "bool" in str(field.type) else {f"--{name}"})
        words = set(re.findall(r"\w+", field.metadata["help"]))
        assert words and not {word for word in words if "_" in word} & {other.name for other in fields}


def test_prefixes_are_reused_except_in_benchmarks() -> None:
    """These send the same prompts again and again, and are to measure their computation."""
    [default] = [field.default for field in dataclasses.fields(EngineConfig) if field.name == "prefix_cache"]
    off = {
        command: option.default is False
        for command, described in typer.main.get_group(app).commands.items()
        for option in described.params
        if option.name == "prefix_cache"
    }
    assert default is True
    assert off == {"serve": False, "generate": False, "bench-scheduler": True, "bench-streaming": True}


def test_generate_makes_ready_for_one_prompt() -> None:
    """A cache for 256 requests, and a warm-up, take longer than its answer."""
    params = typer.main.get_group(app).commands["generate"].params
    defaults = {option.name: option.default for option in params}
    assert defaults["max_active_requests"] == 1 and defaults["warmup"] is False


def test_every_command_has_a_short_text() -> None:
    shown = CliRunner().invoke(app, ["-h"], env={"COLUMNS": "80"}).stdout
    assert "..." not in shown.partition("Commands:")[2] and "bench-streaming" in shown


def test_the_front_end_does_without_torch() -> None:
    """Importing it takes as long as everything else together, and the engine process needs the time."""
    code = "import sys, roseinfer.cli, roseinfer.server.process.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.integration
@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [(resource.RLIMIT_NOFILE, 12, "ulimit -n"), (resource.RLIMIT_FSIZE, 0, "ulimit -f")],
)
def test_a_limit_of_the_system_is_one_line(limit: int, value: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "roseinfer.cli", "serve", "--model", "random:gpt2-tiny", "--port", "0"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert words in done.stderr.splitlines()[-1]
