"""The real files, where they are on this machine: rows, statistics, and what fitting does to them."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import UsageError
from harness.schema.online_settings import Fit
from harness.traces import catalog
from harness.traces.fit import fit
from harness.traces.format import detect
from harness.traces.source import Source
from harness.traces.trace import Trace, describe


def public(name: str) -> Trace:
    try:
        return catalog.load(name)
    except UsageError as error:
        pytest.skip(error.message)


#: rows, span in minutes, rate, gap CV, percentiles 50, 90, 99 and maximum of input and output.
KNOWN = {
    "azure-2023-conv": (19_366, 58.4, 5.53, 1.09, (1020, 2734, 4142, 14050), (129, 424, 601, 1000)),
    "azure-2023-code": (8_819, 57.3, 2.57, 13.15, (1469, 5188, 7436, 7437), (13, 55, 251, 1899)),
    "azure-2023-conv-busy": (1_000, 2.055, 8.10, 1.00, (454, 4085, 4123, 5305), (90, 396, 534, 642)),
    "azure-2023-code-busy": (1_000, 2.673, 6.23, 5.82, (1490, 5820, 7436, 7437), (13, 53, 208, 940)),
    "mooncake-conversation": (12_031, 59.0, 3.40, 3.03, (6909, 27367, 85400, 126195), (350, 597, 1119, 2000)),
    "mooncake-synthetic": (3_993, 17.0, 3.91, 1.01, (11587, 38611, 66456, 191378), (69, 389, 768, 893)),
    "ragpulse": (7_106, 168 * 60, 0.0118, 3.06, (3140, 3958, 5438, 7712), (234, 563, 891, 2183)),
    "sharegpt-lengths": (30_731, None, 1.0, 1.0, (1730, 5696, 7434, 8141), (415, 834, 998, 1024)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_statistics(name: str) -> None:
    rows, minutes, rate, cv, input, output = KNOWN[name]
    found = describe(public(name))
    assert found.requests == rows
    assert minutes is None or found.span_s / 60 == pytest.approx(minutes, rel=2e-3)
    assert found.rate == pytest.approx(rate, rel=5e-3)
    assert found.gap_cv == pytest.approx(cv, abs=0.01)
    for lengths, known in ((found.input, input), (found.output, output)):
        assert list(lengths.values()) == pytest.approx(list(known), abs=0.6)


@pytest.mark.parametrize("name", KNOWN)
def test_the_catalog_names_the_format_that_is_detected(name: str) -> None:
    public(name)
    entry = catalog.find_entry(name)
    assert detect(Source.open(catalog.find(entry))).name == entry.format


@pytest.mark.parametrize(("name", "reuse"), [("mooncake-conversation", 0.366), ("mooncake-synthetic", 0.640)])
def test_mooncake_blocks(name: str, reuse: float) -> None:
    trace = public(name)
    assert trace.blocks is not None and trace.block_size == 512
    assert [len(blocks) for blocks in trace.blocks] == (-(-trace.input_tokens // 512)).tolist()
    assert describe(trace).reuse == pytest.approx(reuse, abs=5e-4)


def test_ragpulse_sessions() -> None:
    trace = public("ragpulse")
    assert trace.session is not None
    _, turns = np.unique(trace.session, return_counts=True)
    assert (len(turns), turns.max()) == (3_990, 25)
    assert turns[turns > 1].sum() / len(trace) == pytest.approx(0.670, abs=5e-4)


#: What a context of 1,024 tokens does; a filter at exactly 1,024 needs a context 9 tokens longer.
@pytest.mark.parametrize(
    ("name", "share", "rate", "cv", "input", "output"),
    [("azure-2023-conv", 0.580, 2.32, 1.22, 390, 98), ("azure-2023-code", 0.630, 0.95, 8.02, 340, 14)],
)
def test_dropping(name: str, share: float, rate: float, cv: float, input: int, output: int) -> None:
    fitted = fit(public(name), "drop", max_model_len=1033)
    assert fitted.dropped / fitted.considered == pytest.approx(share, abs=5e-4)
    assert fitted.changed == 0
    found = describe(fitted.trace)
    assert found.rate == pytest.approx(rate, abs=0.01)
    assert found.gap_cv == pytest.approx(cv, abs=0.01)
    assert found.input["p50"] == pytest.approx(input, abs=0.5)
    assert found.output["p50"] == output


@pytest.mark.parametrize(
    ("name", "changed", "input_kept", "output_kept"),
    [
        ("azure-2023-conv", 0.692, 0.582, 0.492),
        ("azure-2023-code", 0.641, 0.379, 0.844),
        ("mooncake-conversation", 0.971, 0.075, 0.316),
        ("mooncake-synthetic", 0.915, 0.047, 0.467),
    ],
)
def test_clipping(name: str, changed: float, input_kept: float, output_kept: float) -> None:
    trace = public(name)
    fitted = fit(trace, "clip", max_model_len=1024, max_output_len=128)
    assert fitted.dropped == 0
    assert fitted.changed / len(trace) == pytest.approx(changed, abs=5e-3)
    assert fitted.trace.input_tokens.sum() / trace.input_tokens.sum() == pytest.approx(input_kept, abs=2e-3)
    assert fitted.trace.output_tokens.sum() / trace.output_tokens.sum() == pytest.approx(
        output_kept, abs=2e-3
    )


@pytest.mark.parametrize(
    ("name", "input", "output"), [("azure-2023-conv", 245, 31), ("azure-2023-code", 202, 2)]
)
def test_scaling(name: str, input: int, output: int) -> None:
    fitted = fit(public(name), "scale", max_model_len=1024)
    assert fitted.dropped / fitted.considered <= 0.01
    found = describe(fitted.trace)
    assert found.input["p50"] == pytest.approx(input, rel=0.02)
    assert found.output["p50"] == output


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("rule", ["clip", "scale"])
def test_every_request_fits(name: str, rule: Fit) -> None:
    fitted = fit(public(name), rule, max_model_len=1024, max_output_len=64).head(500)
    total = fitted.trace.input_tokens + fitted.trace.output_tokens
    assert total.max() <= 1015
    assert fitted.trace.input_tokens.min() >= 1 and fitted.trace.output_tokens.min() >= 1
