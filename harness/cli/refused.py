"""Errors of the file system that a user can fix."""

from __future__ import annotations

import errno
import os

from harness.errors import BenchError

#: What to do about each.
_FIXES = {
    "free some space": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "allow more open files (`ulimit -n`)": (errno.EMFILE, errno.ENFILE),
    "choose a shorter path": (errno.ENAMETOOLONG,),
    "look at the links in the path": (errno.ELOOP,),
    "check the disk": (errno.EIO,),
    # Also a file where a folder should be, and a place where nothing can be made.
    "fix the permissions": (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT),
    ),
}
_FIX = {number: fix for fix, numbers in _FIXES.items() for number in numbers}


def refused(error: OSError, after: str = "") -> BenchError | None:
    """Return an error with a hint; None if a user cannot fix it.

    Args:
        after: What to do when it is fixed, for a run that has a folder.
    """
    if error.errno is None or (fix := _FIX.get(error.errno)) is None:
        return None
    where = f"{error.filename}: " if error.filename else ""
    hint = f"{fix}; then {after}" if after else f"{fix}, or choose another --out"
    return BenchError(where + os.strerror(error.errno), hint)
