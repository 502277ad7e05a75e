"""This process's command line, without the values of headers."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from pathlib import Path

from harness.schema.setting_types import FROM_ENV, HIDDEN

_OPTION = "--header"
#: A header and its value, unless that is the name of a variable.
_OF_HEADER = re.compile(rf"^((?:{_OPTION}=)?[^=]*=)(?!\s*{FROM_ENV})(.*)$", re.DOTALL)
#: Fields of /proc/PID/stat, counted from 1 (proc(5)).
_ARG_START, _ARG_END = 48, 49


def command_line() -> list[str]:
    """Return the command as it is stored, to be repeated."""
    return ["bench", *without_secrets(sys.argv[1:])]


def without_secrets(arguments: list[str], hidden: Callable[[str], str] = lambda value: HIDDEN) -> list[str]:
    """Return the arguments with `hidden(value)` for values of headers; names of variables stay."""
    shown_arguments: list[str] = []
    for before, text in zip(["", *arguments], arguments, strict=False):
        is_header = before == _OPTION or text.startswith(f"{_OPTION}=")
        header = _OF_HEADER.sub(lambda match: match[1] + hidden(match[2]), text)
        shown_arguments.append(header if is_header else text)
    return shown_arguments


def clear_process_list() -> None:
    """Overwrite such values in the memory from which `ps` reads this process's arguments."""
    shown = without_secrets(sys.argv, lambda value: "x" * len(value.encode()))
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (_ARG_START, _ARG_END))
    if not start or shown == sys.argv:
        return
    memory = (ctypes.c_char * (end - start)).from_address(start)
    content = memory.raw
    for argument, replacement in zip(sys.argv, shown, strict=True):
        content = content.replace(argument.encode(), replacement.encode())
    memory.raw = content
