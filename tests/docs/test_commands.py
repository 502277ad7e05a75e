"""Every command in the documents is one: program, command, options, and settings that go together."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from harness.cli.commands import COMMANDS, load_command
from harness.schema.loader import build
from harness.schema.online_settings import LoadGroup, OnlineSettings, ServerGroup
from harness.schema.search import SearchPlan
from harness.schema.settings import OfflineSettings
from roseinfer.cli import app as roseinfer_app

from .commands import ROOT, Shown, shown

SETTINGS: dict[str, type[Any]] = {
    "online": OnlineSettings,
    "search": OnlineSettings,
    "tune": OnlineSettings,
    "offline": OfflineSettings,
}
#: Stand for something, and are not typed: `…`, `[--host 127.0.0.1]`.
_LEFT_OUT = re.compile(r"\[[^\]]*\]|…(?= |$)")
HELP_SAYS_ALL = {"deadline_s", "max_memory", "prompt_nonce", "seed", "text_prompts", "timeout_s"}
SHOWN = list(dict.fromkeys((command.text, command.block) for command in shown()))


def parsed(command: Any, words: list[str], complete: bool) -> dict[str, Any]:
    """The values that the command gets. One that only a sentence names may lack its arguments."""
    while hasattr(command, "commands") and words:
        context = typer.Context(command)
        words = command.parse_args(context, words)
        _, command, words = command.resolve_command(context, [*context._protected_args, *words])
    try:
        return dict(command.make_context("bench", list(words)).params)
    except typer.TyperException as error:
        assert not complete and "Missing" in error.format_message(), error.format_message()
        return {}


@pytest.mark.parametrize(("text", "block"), [pair for pair in SHOWN if pair[0].startswith("bench ")])
def test_bench_takes_it(text, block, monkeypatch):
    monkeypatch.setenv("TEAM_KEY", "abc")
    name, *words = Shown(ROOT, _LEFT_OUT.sub("", text), block).words[1:]
    if name in ("COMMAND", "--install-completion"):
        return
    assert name in COMMANDS
    values = parsed(load_command(name), words, block)
    if name in SETTINGS and words:
        kind, own = SETTINGS[name], {"slo"} if name in ("search", "tune") else set()
        given = {key: value for key, value in values.items() if value not in (None, [], ())}
        if name == "search":
            given |= SearchPlan.make(given["by"], given["slo"]).settings()
        build(kind, None, {key: given[key] for key in given if key in kind.model_fields.keys() - own})


@pytest.mark.parametrize(("text", "block"), [pair for pair in SHOWN if pair[0].startswith("roseinfer ")])
def test_roseinfer_takes_it(text, block):
    words = Shown(ROOT, _LEFT_OUT.sub("", text).replace("online|offline", "online"), block).words[1:]
    parsed(typer.main.get_group(roseinfer_app), words, block)


def test_make_has_the_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    named = {text.split()[1] for text, _ in SHOWN if text.startswith("make ")}
    assert len(named) > 5 and named <= targets


def test_python_starts_files_that_are_there():
    for text, _ in SHOWN:
        words = text.split()
        if words[0].endswith("python"):
            module = words[2].replace(".", "/") if words[1] == "-m" else words[1]
            assert any((ROOT / place).exists() for place in (module, f"{module}.py")), text


def test_every_option_of_servers_and_loads_is_in_a_command():
    """In a block, to be copied, but for those whose help says all."""
    words = {word for text, block in SHOWN if block for word in text.replace("=", " ").split()}
    for group in (ServerGroup, LoadGroup):
        for name in group.model_fields.keys() - {"num_prompts"} - HELP_SAYS_ALL:
            option = name.replace("_", "-")
            assert {f"--{option}", f"--no-{option}"} & words, option


def test_there_are_commands():
    assert len(SHOWN) > 60
