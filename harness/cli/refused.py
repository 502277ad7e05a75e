"""Errors of the file system that a user can fix."""

from __future__ import annotations

import errno
import os

from harness.errors import BenchError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: No permission, a file where a folder should be, a place where nothing can be made.
_OTHERS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EIO, errno.EMFILE, errno.ENFILE),
}


def refused(error: OSError, after: str = "") -> BenchError | None:
    """What is said of it; None where there is nothing that a user can fix.

    Args:
        after: What to do when it is fixed, for a run that has a folder.
    """
    if error.errno is None or error.errno not in _FULL | _OTHERS:
        return None
    where = f"{error.filename}: " if error.filename else ""
    fix = "free some space" if error.errno in _FULL else "fix the permissions"
    hint = f"{fix}; then {after}" if after else f"{fix}, or choose another --out"
    return BenchError(where + os.strerror(error.errno), hint)
