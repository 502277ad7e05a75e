"""A folder that all machines of a run reach: what is too much to send in messages goes through it."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.errors import BenchError


@dataclass(frozen=True)
class SharedFolder:
    """A new folder below an fsspec URL: `/mnt/all`, `s3://bucket/folder`."""

    url: str

    @staticmethod
    def below(url: str) -> SharedFolder:
        """A folder below `url` that no other run has."""
        return SharedFolder(f"{url.rstrip('/')}/rosebench-{uuid.uuid4().hex}")

    def put(self, data: bytes) -> str:
        """Store data. Returns the name by which `take` finds it. Raises BenchError."""
        name = uuid.uuid4().hex
        try:
            files, folder = self._open()
            with suppress(FileExistsError):
                files.mkdir(folder, create_parents=False)  # a parent, such as a bucket, may be misspelled
            files.pipe_file(f"{folder}/{name}", data)
        except Exception as error:  # each of fsspec's many file systems raises its own
            raise self._unusable(error) from error
        return name

    def take(self, name: str) -> bytes:
        """Read and remove what was stored. Raises BenchError."""
        try:
            files, folder = self._open()
            data: bytes = files.cat_file(f"{folder}/{name}")
            files.rm_file(f"{folder}/{name}")
        except Exception as error:
            raise self._unusable(error) from error
        return data

    def remove(self) -> None:
        """Leave nothing there."""
        with suppress(Exception):  # the folder's name is random: it is ours alone
            files, folder = self._open()
            if files.exists(folder):
                files.rm(folder, recursive=True)

    def _open(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # needed with a shared folder only

        files, folder = url_to_fs(self.url)
        files.invalidate_cache()
        return files, folder.rstrip("/")

    def _unusable(self, error: Exception) -> BenchError:
        return BenchError(
            f"the shared folder {self.url} cannot be used: {type(error).__name__}: {error}",
            "--share needs a folder that exists, which every node and this machine may write, and fsspec's "
            "package for it, such as s3fs",
        )
