"""This process's command line, without the values of headers."""

from __future__ import annotations

import ctypes
import sys
from itertools import pairwise
from pathlib import Path

from harness.schema.setting_types import FROM_ENV, HIDDEN

_OPTION = "--header"
#: Fields of /proc/PID/stat, counted from 1 (proc(5)).
_ARG_START, _ARG_END = 48, 49


def command_line() -> list[str]:
    """The command as it is stored, to be repeated."""
    return ["bench", *without_secrets(sys.argv[1:])]


def without_secrets(arguments: list[str]) -> list[str]:
    """The arguments without the values of headers; names of environment variables stay."""
    shown_arguments: list[str] = []
    for argument in arguments:
        if shown_arguments and shown_arguments[-1] == _OPTION:
            shown_arguments.append(_hidden(argument))
        elif argument.startswith(f"{_OPTION}="):
            shown_arguments.append(f"{_OPTION}={_hidden(argument.partition('=')[2])}")
        else:
            shown_arguments.append(argument)
    return shown_arguments


def clear_process_list() -> None:
    """Overwrite such values in the memory from which `ps` reads this process's arguments."""
    headers = [after for before, after in pairwise(sys.argv) if before == _OPTION]
    headers += [argument.partition("=")[2] for argument in sys.argv if argument.startswith(f"{_OPTION}=")]
    secret = [header for header in headers if _hidden(header) != header]
    if not secret:
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (_ARG_START, _ARG_END))
    if not start:
        return
    memory = (ctypes.c_char * (end - start)).from_address(start)
    held = memory.raw
    for header in secret:
        name, _, value = header.partition("=")
        held = held.replace(header.encode(), f"{name}={'x' * len(value.encode())}".encode())
    memory.raw = held


def _hidden(header: str) -> str:
    """`NAME=VALUE` without its value, unless that is the name of a variable."""
    name, equals, value = header.partition("=")
    return header if value.strip().startswith(FROM_ENV) or not equals else f"{name}={HIDDEN}"
