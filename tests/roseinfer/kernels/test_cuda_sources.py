"""Kernels in CUDA C++ reach the compiler as one text."""

from __future__ import annotations

import pytest

from roseinfer.kernels.cuda.build import with_includes


@pytest.mark.parametrize("name", ["few_rows.cu", "paged_decode.cu"])
def test_every_file_is_there_once(name: str) -> None:
    text = with_includes(name)
    assert '#include "' not in text
    assert text.count("struct Softmax {") == text.count("typedef unsigned short half_t;") == 1
    assert text.index("half_t;") < text.index("struct Softmax {") < text.index('extern "C"')
