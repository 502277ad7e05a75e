"""Datasets by name, each with the digest of its file, and files of the user."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness import paths
from harness.datasets.dataset import Conversation, Dataset, read_jsonl, read_sharegpt
from harness.errors import UsageError

#: Bytes of a file: conversations take about four times as much memory.
MAX_BYTES = 4 << 30
Reader = Callable[[Path, bytes], tuple[list[Conversation], int]]
READERS: dict[str, Reader] = {"sharegpt": read_sharegpt, "jsonl": read_jsonl}


@dataclass(frozen=True)
class Named:
    """A dataset whose file is known by its digest."""

    file: str
    reader: Reader
    sha256: str
    origin: str
    licence: str
    note: str
    get: str = ""


NAMED = {
    "builtin": Named(
        "builtin.jsonl",
        read_jsonl,
        "9bc59c11e78bd2e3ce86f3208abaf92d65b2177132295d9a4e8819e7a941409c",
        "written for this project",
        "Apache-2.0",
        "396 prompts and conversations made from parts written by hand: varied in kind and length, "
        "not recorded from users",
    ),
    "sharegpt": Named(
        "ShareGPT_V3_unfiltered_cleaned_split.json",
        read_sharegpt,
        "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
        "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        "Apache-2.0 by its publisher; the conversations are those of users of ChatGPT",
        "94,145 conversations that users shared",
        "download it from huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered (673 MB) and put "
        "its folder into BENCH_DATASETS",
    ),
}


@cache
def load_dataset(text: str) -> Dataset:
    """Return a dataset by its name, or as `sharegpt:FILE` or `jsonl:FILE`.

    Raises:
        UsageError: There is none, it cannot be read, or it is not the published file.
    """
    if text in NAMED:
        return _named(text, NAMED[text])
    kind, colon, file = text.partition(":")
    if not colon or kind not in READERS:
        if not colon and Path(text).expanduser().is_file():
            kind = "jsonl" if text.endswith(".jsonl") else "sharegpt"
            raise UsageError(f"{text!r} is a file, not the name of a dataset", f"write {kind}:{text}")
        names = ", ".join([*NAMED, *(f"{kind}:FILE" for kind in READERS), "weka:PLACE", "tracelab:PLACE"])
        raise UsageError(f"there is no dataset {text!r}", f"give one of {names}")
    path = Path(file).expanduser()
    raw = _read(path)
    conversations, skipped = READERS[kind](path, raw)
    digest = hashlib.sha256(raw).hexdigest()
    same = next((name for name, named in NAMED.items() if named.sha256 == digest), None)
    if same is not None:
        return _dataset(same, NAMED[same], conversations, skipped)
    return Dataset(path.stem, tuple(conversations), digest, str(path), skipped=skipped)


def _named(name: str, named: Named) -> Dataset:
    path = next(_copies(named.file), None)
    if path is None:
        raise UsageError(f"dataset {name} is not on this machine ({named.file})", named.get)
    raw = _read(path)
    if (digest := hashlib.sha256(raw).hexdigest()) != named.sha256:
        raise UsageError(
            f"{path} is not the published dataset {name}: sha256 {digest}, expected {named.sha256}",
            f"restore it, or give sharegpt:{path} or jsonl:{path} to use this file",
        )
    return _dataset(name, named, *named.reader(path, raw))


def _dataset(name: str, named: Named, conversations: list[Conversation], skipped: int) -> Dataset:
    return Dataset(
        name,
        tuple(conversations),
        named.sha256,
        named.origin,
        licence=named.licence,
        note=named.note,
        skipped=skipped,
    )


def _copies(file: str) -> Iterator[Path]:
    searched = [Path(folder) for folder in os.environ.get("BENCH_DATASETS", "").split(os.pathsep) if folder]
    for folder in (*searched, paths.CACHE / "datasets", paths.DATA / "datasets"):
        if (folder / file).is_file():
            yield folder / file


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(
                f"{path} holds over {MAX_BYTES >> 30} GiB of text", "give the part of it to be sent"
            )
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
