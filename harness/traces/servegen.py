"""Mixtures of clients as ServeGen describes them (Xiang et al., arXiv 2505.09999): statistics, no requests.

A client is two files. `NAME-trace.csv` has no header and one line for each window of time: its start in
seconds, requests a second, coefficient of variation of the times between them, the name of their distribution
(`Gamma` or `Weibull`, empty where the client was idle) and its shape and scale. `NAME-dataset.json` has for
each longer window, by its start, the probabilities of input and output lengths as text: `{tokens: share}`.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError

TRACE, DATASET = "-trace.csv", "-dataset.json"
CITATION = (
    'Y. Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving '
    'in Production", arXiv 2505.09999'
)
_HINT = "give a folder with NAME-trace.csv and NAME-dataset.json of each client, as ServeGen publishes them"


class _Texts(msgspec.Struct):
    input_tokens: str
    output_tokens: str


class _Window(msgspec.Struct, frozen=True, array_like=True):
    start_s: Annotated[float, msgspec.Meta(ge=0)]
    req_per_s: Annotated[float, msgspec.Meta(ge=0)]
    cv: float
    pattern: Literal["Gamma", "Weibull", ""]
    shape: float
    scale: float


@dataclass(frozen=True, eq=False)
class Shares:
    """Lengths in tokens, ascending, and how likely each is."""

    tokens: NDArray[np.int64]
    probability: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return float(self.tokens @ self.probability)

    def up_to(self, most: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of a length of at most so many tokens; the shape of `most`."""
        steps = np.concatenate([[0.0], np.cumsum(self.probability)])
        share: NDArray[np.float64] = steps[np.searchsorted(self.tokens, most, side="right")]
        return share

    def at(self, uniforms: NDArray[np.float64], most: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the lengths at these values of their distribution function; the shape of `uniforms`.

        Args:
            most: The longest length that may be drawn for each value, of which there must be some.
        """
        steps = np.cumsum(self.probability)
        last = len(steps) - 1 if most is None else np.searchsorted(self.tokens, most, side="right") - 1
        place = np.minimum(np.searchsorted(steps, uniforms * steps[last]), last)
        lengths: NDArray[np.int64] = self.tokens[place]
        return lengths


@dataclass(frozen=True)
class TrafficClient:
    """One sender of requests in a window: its rate, the distribution of its gaps, its lengths. No request has
    more than `most_tokens`, input and output together; None: no limit."""

    name: str
    req_per_s: float
    pattern: Literal["Gamma", "Weibull"]
    shape: float
    input_tokens: Shares
    output_tokens: Shares
    most_tokens: int | None = None

    def lengths(
        self, of_inputs: NDArray[np.float64], of_outputs: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return input and output tokens of requests, (n,) each, at these values of the distributions."""
        if self.most_tokens is None:
            return self.input_tokens.at(of_inputs), self.output_tokens.at(of_outputs)
        inputs = self._inputs_within(self.most_tokens).at(of_inputs)
        return inputs, self.output_tokens.at(of_outputs, self.most_tokens - inputs)

    def within(self, most_tokens: int) -> float:
        """Return the share of its requests that have at most so many tokens."""
        return math.fsum(self._inputs_within(most_tokens).probability)

    def _inputs_within(self, most_tokens: int) -> Shares:
        """Return the inputs, each as likely as it is together with an output that fits."""
        outputs = self.output_tokens.up_to(most_tokens - self.input_tokens.tokens)
        return Shares(self.input_tokens.tokens, self.input_tokens.probability * outputs)


@dataclass(frozen=True)
class Mixture:
    """The clients that were active in the window from `start_s`, and the digest of all files.

    Of requests that do not fit, `dropped_each` are expected for each that does; of `unfit` more clients no
    request fits."""

    folder: str
    start_s: float
    clients: tuple[TrafficClient, ...]
    clients_in_folder: int
    sha256: str
    dropped_each: float = 0.0
    unfit: int = 0

    @property
    def req_per_s(self) -> float:
        """Requests a second of all clients together."""
        return math.fsum(client.req_per_s for client in self.clients)

    @property
    def origin(self) -> str:
        unfit = f"; {self.unfit} left out, as no request of theirs fits the context" if self.unfit else ""
        return (
            f"{len(self.clients)} of {self.clients_in_folder} clients in {self.folder}, as they were from "
            f"{self.start_s:g} s on ({self.req_per_s:.3g} requests/s){unfit}"
        )

    def within(self, most_tokens: int) -> Mixture:
        """Return the mixture without requests of more tokens, input and output together.

        Each client sends as many, of the lengths that fit. One of which none fits is left out.

        Raises:
            UsageError: No request of any client fits.
        """
        shares = [(client, client.within(most_tokens)) for client in self.clients]
        fitting = [(replace(client, most_tokens=most_tokens), share) for client, share in shares if share]
        if not fitting:
            raise UsageError(
                f"no request of the {len(shares)} clients in {self.folder} has {most_tokens} tokens or fewer",
                "use --fit clip or --fit scale, or a model with a longer context",
            )
        clients = tuple(client for client, _ in fitting)
        mixture = replace(self, clients=clients, unfit=len(shares) - len(fitting))
        drawn = math.fsum(client.req_per_s / share for client, share in fitting)
        return replace(mixture, dropped_each=drawn / mixture.req_per_s - 1)


def read_mixture(text: str) -> Mixture:
    """Read the mixture in a folder: its busiest window or, as `FOLDER@SECONDS`, the one with that time.

    Raises:
        UsageError: There are no such files, one is malformed, or no client was active.
    """
    parts = re.fullmatch(r"(.*)@(\d+\.?\d*|\.\d+)", text, re.DOTALL)
    folder = Path(parts[1] if parts else text).expanduser()
    files = sorted(folder.glob(f"*{TRACE}"))
    if not files:
        raise UsageError(f"{folder} has no clients of a mixture", _HINT)
    digest = hashlib.sha256()
    windows, lengths = {}, {}
    for file in files:
        client = file.name.removesuffix(TRACE)
        windows[client] = _windows(file, digest)
        lengths[client] = _lengths(file.with_name(client + DATASET), digest)
    start = _holding(windows, float(parts[2]), folder) if parts else _busiest(windows)
    clients = []
    for client, rows in windows.items():
        row = next((row for row in rows if row.start_s == start), None)
        begins = [begin for begin in lengths[client] if begin <= start]
        if row is None or not row.req_per_s or row.pattern == "" or not begins:
            continue
        inputs, outputs = lengths[client][max(begins)]
        if len(inputs.tokens) and len(outputs.tokens):
            clients.append(TrafficClient(client, row.req_per_s, row.pattern, row.shape, inputs, outputs))
    if not clients:
        raise UsageError(f"no client of {folder} was active at {start:g} s", "choose another time")
    return Mixture(str(folder), start, tuple(clients), len(files), digest.hexdigest())


def _busiest(windows: dict[str, list[_Window]]) -> float:
    rates: defaultdict[float, float] = defaultdict(float)
    for row in chain.from_iterable(windows.values()):
        rates[row.start_s] += row.req_per_s
    return max(rates, key=lambda start: rates[start])


def _holding(windows: dict[str, list[_Window]], moment: float, folder: Path) -> float:
    starts = sorted({row.start_s for rows in windows.values() for row in rows if row.start_s <= moment})
    if not starts:
        raise UsageError(f"the mixture of {folder} has no window at {moment:g} s", "choose another time")
    return starts[-1]


def _windows(file: Path, digest: hashlib._Hash) -> list[_Window]:
    raw = _bytes(file, digest)
    rows = []
    for number, row in enumerate(csv.reader(raw.decode("utf-8", "replace").splitlines()), start=1):
        try:
            rows.append(msgspec.convert(row, _Window, strict=False))
        except msgspec.ValidationError as error:
            raise UsageError(f"{file}, line {number}: {error}", _HINT) from None
        if rows[-1].pattern and rows[-1].shape <= 0:
            raise UsageError(f"{file}, line {number}: a shape of {rows[-1].shape:g}", _HINT)
    return rows


def _lengths(file: Path, digest: hashlib._Hash) -> dict[float, tuple[Shares, Shares]]:
    try:
        texts = msgspec.json.decode(_bytes(file, digest), type=dict[str, _Texts])
        return {
            float(start): (_shares(window.input_tokens), _shares(window.output_tokens))
            for start, window in texts.items()
        }
    except (msgspec.DecodeError, ValueError, SyntaxError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: {error}", _HINT) from None


def _shares(text: str) -> Shares:
    """Read `{63: 0.18, 64: 0.51}`; empty for `{}`."""
    items = sorted((int(tokens), float(share)) for tokens, share in ast.literal_eval(text).items())
    tokens = np.array([max(1, tokens) for tokens, _ in items], dtype=np.int64)
    probability = np.array([share for _, share in items], dtype=np.float64)
    if items and not (np.all(probability >= 0) and probability.sum() > 0):
        raise ValueError("shares of lengths that are no probabilities")
    return Shares(tokens, probability / probability.sum() if items else probability)


def _bytes(file: Path, digest: hashlib._Hash) -> bytes:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", _HINT) from None
    digest.update(raw)
    return raw
