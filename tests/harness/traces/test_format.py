"""Every format is recognised by its content, and a malformed file is reported with file, line and column."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.schema.load import LATEST_S
from harness.traces import csv_formats
from harness.traces.format import detect, formats, read_trace
from harness.traces.source import Source
from harness.traces.trace import Trace

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-17 00:00:00.0000001,879,55"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 23:59:59.009930+00:00,2162,5\n"
    "2024-05-11 00:00:00+00:00,2399,6\n"
    "2024-05-11 02:00:01+02:00,76,0\n"
)
MOONCAKE = (
    '{"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [0, 2]}\n'
)
QWEN = (
    '{"chat_id": 9, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 17, "output_length": 3, '
    '"type": "text", "turn": 1, "hash_ids": [4, 5]}\n'
    '{"chat_id": 12, "parent_chat_id": 9, "timestamp": 61.25, "input_length": 33, "output_length": 4, '
    '"type": "text", "turn": 2, "hash_ids": [4, 5, 6]}\n'
    '{"chat_id": 13, "parent_chat_id": 7, "timestamp": 61.5, "input_length": 1, "output_length": 1, '
    '"type": "file", "turn": 2, "hash_ids": [8]}\n'
)
RAGPULSE = (
    '{"timestamp": "93", "input_length": 3167, "output_length": 86, "hash_ids": {"history": [1]}, '
    '"session_id": "b"}\n'
    '{"timestamp": "82", "input_length": 3112, "output_length": 192, "hash_ids": {}, "session_id": "a"}\n\n'
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,1087,0,1087,API log\n"
)
LENGTHS = (
    "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n290,905,1195,0.3\n"
)
PROJECT = "arrival_s,input_tokens,output_tokens,session,prefix_blocks\n1.5,40,2,b,7 8\n0.25,16,1,a,\n"

FORMATS = {
    "azure": AZURE_2023,
    "mooncake": MOONCAKE,
    "qwen": QWEN,
    "ragpulse": RAGPULSE,
    "burstgpt": BURSTGPT,
    "lengths": LENGTHS,
    "rosebench": PROJECT,
}


def source(tmp_path: Path, content: str | bytes) -> Source:
    path = tmp_path / "some.trace"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Source.open(path)


def read(tmp_path: Path, content: str | bytes) -> Trace:
    return read_trace(source(tmp_path, content))


@pytest.mark.parametrize("name", FORMATS)
def test_detected_from_content(tmp_path: Path, name: str) -> None:
    assert detect(source(tmp_path, FORMATS[name])).name == name


def test_every_format_is_tried_here() -> None:
    assert {it.name for it in formats()} == set(FORMATS)


@pytest.mark.parametrize(
    ("content", "arrivals", "inputs", "outputs", "session", "blocks"),
    [
        (AZURE_2023, [0.0, 4.314579, 20653.3194101], [374, 396, 879], [44, 109, 55], None, None),
        (AZURE_2024, [0.0, 0.99007, 1.99007], [2162, 2399, 76], [5, 6, 0], None, None),
        (MOONCAKE, [0.0, 1.5], [513, 600], [7, 5], None, ((0, 2), (0, 1))),
        (QWEN, [0.0, 60.75, 61.0], [17, 33, 1], [3, 4, 1], "9 9 13", ((4, 5), (4, 5, 6), (8,))),
        (RAGPULSE, [0.0, 11.0], [3112, 3167], [192, 86], "a b", None),
        (BURSTGPT, [0.0, 40.0], [472, 1087], [18, 0], None, None),  # fitting counts failures
        (PROJECT, [0.0, 1.25], [16, 40], [1, 2], "a b", ((), (7, 8))),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_requests_in_order_of_arrival(tmp_path, content, arrivals, inputs, outputs, session, blocks, packed):
    trace = read(tmp_path, gzip.compress(content.encode()) if packed else content)
    np.testing.assert_allclose(trace.arrival_s, arrivals, rtol=0, atol=1e-9)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == (inputs, outputs)
    assert (None if trace.session is None else " ".join(trace.session)) == session
    assert trace.blocks == blocks
    assert trace.block_size == (512 if content == MOONCAKE else None if blocks is None else 16)


def test_lengths_say_that_arrivals_are_generated(tmp_path: Path) -> None:
    trace = read(tmp_path, LENGTHS)
    assert trace.output_tokens.tolist() == [918, 905]
    assert trace.note is not None and "generated" in trace.note


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        (",44\r\n", ",abc\r\n", "must be a whole number, 0 or more"),
        ("2023-11-16 18:15:46", "noon", "must be a time like 2023-"),
        ("2023-11-16 18:15:46", "9999-11-16 18:15:46", "must be a time like 2023-"),
    ],
)
def test_a_value_that_does_not_fit(tmp_path: Path, good: str, bad: str, rule: str) -> None:
    assert good in AZURE_2023
    with pytest.raises(UsageError, match=f"line 2: .*: it {rule}"):
        read(tmp_path, AZURE_2023.replace(good, bad))


def test_a_number_that_is_no_float_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 3: arrival_s is '1e400': .* not too large for 64 bits"):
        read(tmp_path, "arrival_s,input_tokens,output_tokens\n0,1,1\n1e400,1,1\n")


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (AZURE_2023.replace("396", "-396"), 3, "ContextTokens is '-396'"),
        (AZURE_2023.replace("109", "a lot"), 3, "GeneratedTokens is 'a lot'"),
        (AZURE_2023.replace("879", ""), 4, "ContextTokens is ''"),
        (AZURE_2023.replace("2023-11-17", "yesterday"), 4, "TIMESTAMP is 'yesterday"),
        (AZURE_2023.replace(",55", ""), 4, "2 values"),
        (AZURE_2023.replace(",109", ",109,1"), 3, "4 values"),
        (AZURE_2023.replace("\r\n2023-11-17", "\r\n\r\n2023-11-17"), 4, "TIMESTAMP is ''"),
        (AZURE_2023.split("\r\n")[0], 1, "no request"),
        (AZURE_2023.replace(",GeneratedTokens", ""), 1, "also needs 'GeneratedTokens'"),
        (AZURE_2023.replace("TIMESTAMP", "GeneratedTokens,TIMESTAMP"), 1, "twice"),
        (MOONCAKE.replace("513", "-513"), 2, "$.input_length"),
        (MOONCAKE.replace("513", "51.5"), 2, "$.input_length"),
        (MOONCAKE.replace("513", "5" * 25), 2, "$.input_length"),
        (MOONCAKE.replace("[0, 2]", '["x"]'), 2, "$.hash_ids"),
        (MOONCAKE.replace('"output_length": 7, ', ""), 2, "output_length"),
        (MOONCAKE + "\n{broken\n", 3, ""),
        (MOONCAKE.replace('"hash_ids"', '"ids"'), 1, "also needs 'hash_ids'"),
        ('{"timestamp": 0,', 1, "not a JSON object"),
        (RAGPULSE.replace('"82"', '"soon"'), 2, "$.timestamp"),
        (RAGPULSE.replace('"82"', f'"{"8" * 400}"'), 2, "$.timestamp"),
        (BURSTGPT.replace("\n45,", "\nlate,"), 3, "Timestamp is 'late'"),
        (PROJECT.replace("0.25", "nan"), 3, "arrival_s is 'nan'"),
        (PROJECT.replace("7 8", "seven"), 2, "prefix_blocks is 'seven'"),
        ("# note: made up\n" + PROJECT.replace("40", "1e9"), 3, "input_tokens is '1e9'"),
        ("# block_size: 0\n" + PROJECT, 1, "block_size"),
        ("just some text\nof two lines\n", 1, "no trace format"),
    ],
)
def test_malformed(tmp_path: Path, content: str, line: int, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, content)
    assert f"some.trace, line {line}: " in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint
    if says == "no trace format":
        assert "arrival_s,input_tokens,output_tokens" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n  \n", "is empty"),
        (b"\x7fELF\x00\x01\x02", "binary"),
        (b"\x89PNG\r\n\x1a\n", "not UTF-8"),
        (b"\x1f\x8bnot gzip", "gzip"),
        (AZURE_2024.encode() + b"2024-05-11 00:00:09+00:00,\xff,1\n", "UTF8"),
    ],
)
def test_not_a_trace_at_all(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(tmp_path, content)


def test_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        Source.open(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        Source.open(tmp_path / "none.csv")


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(st.integers(1, 20))

    def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=rows, max_size=rows)

    blocks = draw(st.none() | column(st.lists(st.integers(0, 2**80), max_size=4).map(tuple)))
    return Trace.build(
        "drawn",
        draw(column(st.floats(0, LATEST_S))),
        draw(column(st.integers(0, 10**9))),
        draw(column(st.integers(0, 10**9))),
        session=draw(st.none() | column(TEXT)),
        blocks=None if blocks is None else tuple(blocks),  # type: ignore[arg-type]
        block_size=None if blocks is None else draw(st.integers(1, 512)),
        origin=draw(TEXT),
        note=draw(st.none() | TEXT),
    )


@settings(max_examples=20)
@given(trace=traces())
def test_what_is_written_reads_the_same(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("csv") / "drawn.csv"
    path.write_bytes(csv_formats.dump(trace))
    again = read_trace(Source.open(path))
    np.testing.assert_array_equal(again.arrival_s, trace.arrival_s)
    np.testing.assert_array_equal(again.input_tokens, trace.input_tokens)
    np.testing.assert_array_equal(again.output_tokens, trace.output_tokens)
    assert (again.session is None) == (trace.session is None)
    assert again.session is None or again.session.tolist() == trace.session.tolist()  # type: ignore[union-attr]
    assert (again.blocks, again.block_size) == (trace.blocks, trace.block_size)
    assert (again.origin, again.note) == (trace.origin, trace.note)
    assert list(path.parent.iterdir()) == [path]
