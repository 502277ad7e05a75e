"""Help that fits a terminal of 80 columns, examples that work, names that are completed or corrected."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import offline, online, search, tune
from harness.cli.commands import load_command
from harness.cli.options import settings_of
from harness.errors import UsageError
from harness.schema.loader import build
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import CommonSettings, OfflineSettings, titles_of

pytestmark = pytest.mark.integration

MEASURE = ("online", "offline", "search", "tune")
COMMANDS: list[tuple[str, type[CommonSettings]]] = [("online", OnlineSettings), ("offline", OfflineSettings)]


@pytest.mark.parametrize(("command", "kind"), COMMANDS)
def test_every_setting_is_shown_in_its_group(command: str, kind: type[CommonSettings], bench: Any) -> None:
    titles = titles_of(kind)
    assert titles.keys() == kind.model_fields.keys()
    shown = bench(command, "--help-all").out
    assert set(titles.values()) <= {line.removesuffix(":") for line in shown.splitlines()}
    assert "Options:" not in shown


@pytest.mark.parametrize("command", MEASURE)
def test_twelve_options_fit_a_screen(command: str, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples come first; the last option shows the others."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = bench(command, "-h").out
    assert bench(command, "--help").out == shown and len(shown.splitlines()) <= 50
    options = re.findall(r"^  (--\S+)", shown, re.MULTILINE)
    assert len(options) <= 13 and options[-1] == "--help-all"
    assert shown.index("Examples:") < shown.index("Options:")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(("command", "kind"), COMMANDS)
def test_no_name_is_cut(command, kind, columns, bench, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = bench(command, "--help-all").out
    lines = [line for line in text.splitlines() if not line.startswith("  bench ")]
    assert max(map(len, lines)) <= columns
    first = {line.split()[0].replace("--[no-]", "--") for line in lines if line.startswith("  --")}
    assert {"--" + name.replace("_", "-") for name in settings_of(kind)} <= first


@pytest.mark.parametrize("command", ["online", "offline", "search", "tune", "profile run", "report"])
def test_a_description_stands_by_itself(command: str, bench: Any) -> None:
    """It does not go on with the option's name, and says limits and values as people do."""
    shown = bench(*command.split(), *(["--help-all"] if command in MEASURE else ["--help"])).out
    options = re.findall(r"^  (--\S+)[^\n]*?\s{2,}(\S.*)", shown, re.MULTILINE)
    assert options and not [name for name, text in options if text.startswith("of ")]
    if command in ("search", "tune"):
        assert "range>" not in str(options) and "x>=" not in shown


@pytest.mark.parametrize("example", [*online.EXAMPLES, *offline.EXAMPLES])
def test_examples_are_valid(example: str) -> None:
    program, name, *arguments = shlex.split(example)
    command = load_command(name)
    values = command.make_context(name, arguments).params
    kind = dict(COMMANDS)[name]
    given = {key: value for key, value in values.items() if key in kind.model_fields and value}
    assert program == "bench" and given and build(kind, None, given)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("modle: x", "model"),
        ("scale: 1", "scales"),
        ("min-duratoin: 1", "min_duration"),
        ("no_interleave: true", "interleave: false"),
        ("no-prefix-cache: false", "prefix_cache: true"),
    ],
)
def test_a_misspelt_key_is_corrected(text: str, meant: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match="there is no key") as raised:
        build(OnlineSettings, file, {})
    assert raised.value.hint.startswith(f"did you mean {meant}? ")


@pytest.mark.parametrize(("words", "hint"), [
    ("--concurrency 1-8", "--concurrency 1,8,64"),
    ("--ramp 2-40", "--ramp 2:40:15"),
    ("--slo ttft_p99=200", "ttft_p99<=200ms"),
    ("--concurrency 4 --scales 0.4", "leave out --scales, or --concurrency"),
    ("--load-nodes 2", "leave out --load-nodes, or add --cluster"),
    ("--base-url http://h --engines vllm", "leave out --engines"),
])  # fmt: skip
def test_the_hint_of_a_wrong_value_is_the_right_form(words: str, hint: str, bench: Any) -> None:
    done = bench("online", *words.split())
    assert done.code == 2 and hint in done.err.partition("hint: ")[2]


def test_a_misspelt_option_is_corrected(bench: Any) -> None:
    done = bench("online", "--concurency", "3")
    assert done.code == 2
    message, hint = done.err.splitlines()
    assert message.startswith("bench: No such option: --concurency (") and " --concurrency" in message
    assert hint == "  hint: see `bench online --help-all`"


@pytest.mark.parametrize(("command", "wrong", "right"), [
    ("offline", "--n", "--num-prompts"), ("online", "--num-prompts", "--n"),
])  # fmt: skip
def test_the_other_name_of_the_number_of_requests(command: str, wrong: str, right: str, bench: Any) -> None:
    done = bench(command, wrong, "3")
    assert done.code == 2 and f"  hint: did you mean {right}? see `bench {command} --help-all`" in done.err


def test_the_help_that_is_named_is_the_commands(bench: Any) -> None:
    named = {words: bench(*words.split()).err.splitlines()[-1].partition("see ")[2] for words in (
        "tune roseinfer --n 0", "search --slo ttft_p50<=1s --n 0", "engines show x --nope",
    )}  # fmt: skip
    assert list(named.values()) == [
        "`bench tune --help-all` for what each setting takes",
        "`bench search --help-all` for what each setting takes",
        "`bench engines show --help`",
    ]
    message = "bench: Invalid value for '--repeats': Input should be greater than or equal to 2\n"
    assert bench("tune", "roseinfer", "--repeats", "0").err.startswith(message)


def test_a_settings_file_of_a_search_leaves_out_what_it_decides(bench: Any, tmp_path: Path) -> None:
    for command, decided in (("search", search.DECIDED), ("tune", tune.DECIDED)):
        file = tmp_path / f"{command}.yaml"
        assert bench("config", "init", str(file), "--for", command).code == 0
        given = set(re.findall(r"^#(\w+): ", file.read_text(), re.MULTILINE))
        assert given == {*settings_of(OnlineSettings)} - {*decided}


@pytest.mark.parametrize(("command", "kind"), COMMANDS)
def test_a_settings_file_to_begin_with(command, kind, bench, tmp_path):
    """As it is it changes nothing; each setting that has a default is given by removing its `#`."""
    file = tmp_path / "run.yaml"
    written = bench("config", "init", str(file), "--for", command).out.split()
    assert written == [str(file), str(tmp_path / "run.schema.json")]
    text = file.read_text()
    defaults = kind()
    assert build(kind, file, {}) == defaults
    head, schema = text.splitlines()[0].split("$schema=")
    known = json.loads((tmp_path / schema).read_text())["properties"]
    assert head == "# yaml-language-server: " and list(known) == list(kind.model_fields)
    given = dict(re.findall(r"^#(\w+): (.*)$", text, re.MULTILINE))
    assert [*given] and given.keys() == set(settings_of(kind))
    idle = defaults.idle()
    for name in settings_of(kind):
        field = kind.model_fields[name]
        default = getattr(defaults, name)
        if default not in (None, {}) and name not in idle:
            file.write_text(text.replace(f"\n#{name}:", f"\n{name}:"))
            assert getattr(build(kind, file, {}), name) == default, field
    assert "is there already" in bench("config", "init", str(file)).err


#: Completes each line of its input in a process of its own, which imports no more than it needs to.
COMPLETE = """
import gc, os, sys
from harness.cli.app import main
import harness.cli.commands
sys.argv = ["bench"]
for words in sys.stdin.read().splitlines():
    if not (child := os.fork()):
        os.environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        main()
    os.waitpid(child, 0)
    print(flush=True)
    harness.cli.commands.load_command("online")
    gc.freeze()
"""


def test_the_shell_completes() -> None:
    expected = {
        "bench comp": ["compare"],
        "bench online --engines": ["--engines", "--engines-per-node"],
        "bench online --device c": ["cuda", "cpu"],
        "bench online --engines roseinfer,vl": ["roseinfer,vllm"],
    }
    env = os.environ | {"_BENCH_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE], env=env, input="\n".join(expected), capture_output=True, text=True
    )
    found = [answer.split() for answer in done.stdout.split("\n\n")]
    assert found == [*expected.values(), []], done.stderr
