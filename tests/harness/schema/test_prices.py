"""Price files, right and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.schema.machines import Prices, hourly, read_prices

H200 = {"gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]}


def test_gpus_are_paid_by_the_most_exact_name(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("gpus: {h200: 3, NVIDIA H200: 3.5, H100: 2}\nmachine: 0.4\n")
    prices = read_prices(file)
    found = hourly(prices, H200, "cuda")
    assert (found.amount, found.of, found.currency) == (7.0, "2 × NVIDIA H200", "$")
    assert hourly(prices, H200, "cpu").amount == 0.4
    assert hourly(prices, {"gpus": [{"name": "H200 NVL"}]}, "cuda").amount == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Input should be a valid dictionary"),
        ("[1, 2]", "Input should be a valid dictionary"),
        ("gpus: [1, 2]", "gpus: Input should be a valid dictionary (given: [1, 2])"),
        ("gpus: {'': 2}", "gpus..[key]: String should have at least 1 character"),
        ("machine: true", "machine: Input should be a valid number (given: True)"),
        ("machine: '0.4'", "machine: Input should be a valid number (given: '0.4')"),
        ("machine: .nan", "finite"),
        ("{}", "it has neither gpus nor machine"),
        ("gpu: {H200: 3}", "there is no key 'gpu'"),
        ("gpus: {H200: free}", "gpus.H200: Input should be a valid number (given: 'free')"),
        ("gpus: {H200: -1}", "greater than 0"),
        ("machine: .inf", "finite"),
        ("a: [", "is not YAML"),
        ("machine: 1\nmachine: 2", "line 2: machine is given twice"),
    ],
)
def test_wrong_files_get_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"prices\.yaml") as raised:
        read_prices(file)
    assert said in raised.value.message and "\n" not in raised.value.message and raised.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_prices(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("content", "environment", "device", "said"),
    [
        ({"gpus": {"H100": 2}}, H200, "cuda", "have none for NVIDIA H200"),
        ({"machine": 2}, H200, "cuda", "have none for NVIDIA H200"),
        ({"gpus": {"H200": 2}}, H200, "cpu", "the run used no GPU"),
    ],
)
def test_a_machine_without_a_price(content: Any, environment: Any, device: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        hourly(Prices.model_validate(content), environment, device)
    assert raised.value.hint
