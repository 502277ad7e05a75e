"""Kernels in CUDA C++ reach the compiler as one text."""

from __future__ import annotations

import pytest

from roseinfer.kernels.cuda.build import with_includes


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("few_rows.cu", "struct Softmax {"),
        ("paged_decode.cu", "struct Softmax {"),
        ("gqa_decode.cu", "struct Softmax {"),
        ("stream.cu", "barrier_t;"),
        ("draw.cu", "struct How {"),
    ],
)
def test_every_file_is_there_once(name: str, part: str) -> None:
    text = with_includes(name)
    assert '#include "' not in text
    assert text.count(part) == text.count("typedef unsigned short half_t;") == 1
    assert text.index("half_t;") < text.index(part) < text.index('extern "C"')
