"""What a log says of why its process ended, in one sentence."""

from __future__ import annotations

import re

from harness.plain_text import one_line

#: A sentence in a table, not a log.
LONGEST = 300
#: What names a cause: an exception's last line, a program's own error, what C++ has thrown.
_CAUSE = re.compile(r"(?:\b[A-Za-z_][\w.]*(?:Error|Exception)\b|\berror|what\(\)): +\S.*", re.IGNORECASE)
#: Pydantic names the field and the fault in the two lines below.
_LISTED = re.compile(r"\d+ validation errors? for \S+$")
#: Errors that only say that another process, whose error is above, has ended.
_CONSEQUENCE = re.compile(r"see .*above|see stack trace", re.IGNORECASE)
_WARNING = re.compile(r"\b(INFO|WARNING)\b|\bwarn|Warning:")
#: What loggers put before their text: process, level, date, source.
_PREFIX = re.compile(r"^(?:\([^)]* pid=\d+\) *)?(?:(?:ERROR|CRITICAL) [\d: -]+ \[[^]]+\] *)?")


def cause(log: str) -> str:
    """The last error in a log that is no consequence of another, else its last error, else its last line."""
    lines = [text for line in log.splitlines() if (text := _PREFIX.sub("", line.strip()))]
    errors = [at for at, line in enumerate(lines) if _CAUSE.search(line) and not _WARNING.search(line)]
    own = [at for at in errors if not _CONSEQUENCE.search(lines[at])]
    for at in (own or errors)[-1:]:
        text = _CAUSE.search(lines[at])[0].removeprefix("error: ")  # type: ignore[index]
        listed = lines[at + 1 : at + 3] if _LISTED.search(text) else []
        return one_line(" ".join([text, *listed]).partition(" [type=")[0], LONGEST)
    return one_line(lines[-1], LONGEST) if lines else ""
