"""Spaces of settings."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.schema.tune import Parameter, Space

_values = st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True)
_spaces = st.builds(
    lambda options, variables: Space.model_validate(
        {
            "engine": "x",
            "args": {f"--o{n}": values for n, values in enumerate(options)},
            "env": {f"V{n}": values for n, values in enumerate(variables)},
        }
    ),
    st.lists(_values, min_size=1, max_size=3),
    st.lists(_values, max_size=2),
)


@given(_spaces, st.integers(1, 300), st.integers(0, 9))
def test_configurations_are_of_the_space_and_none_comes_twice(space: Space, count: int, seed: int) -> None:
    drawn = space.draw(count, seed)
    assert len(drawn) == min(count, space.size - 1)
    assert len({tuple(sorted(settings.items())) for settings in drawn}) == len(drawn)
    assert drawn == space.draw(count, seed)
    for settings in drawn:
        assert settings, "the default is not drawn"
        assert all(value in space.parameters[name].choices for name, value in settings.items())
        words = space.arguments(settings)
        assert len(words) == 2 * sum(name in space.args for name in settings)
        assert space.variables(settings).keys() == settings.keys() & space.env.keys()


@given(_spaces)
def test_all_configurations_can_be_drawn(space: Space) -> None:
    assert len(space.draw(space.size, 0)) == space.size - 1
    assert space.size == prod(1 + len(found.choices) for found in space.parameters.values())


@pytest.mark.parametrize(
    ("given", "choices"),
    [
        ([1, "a", 0.5], [1, "a", 0.5]),
        ({"low": 512, "high": 5000, "factor": 2}, [512, 1024, 2048, 4096]),
        ({"low": 0.1, "high": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
        ({"values": [True, False], "device": "cuda"}, [True, False]),
    ],
)
def test_values(given: object, choices: list[object]) -> None:
    assert Parameter.model_validate(given).choices == choices


def test_options_as_a_command_line_has_them() -> None:
    space = Space.model_validate(
        {"engine": "x", "args": {"--a": [4], "--b": [True, False]}, "env": {"OMP": ["true"]}}
    )
    assert space.arguments({"--a": 4, "--b": True, "OMP": "true"}) == ["--a", "4", "--b"]
    assert space.arguments({"--b": False}) == ["--no-b"]
    assert space.variables({"--a": 4, "OMP": "true"}) == {"OMP": "true"}
    assert space.flags == ["--a", "--b", "--no-b"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"args": {"a": [1]}}, "pattern"),
        ({"args": {"--a": []}}, "list of values"),
        ({"args": {"--a": 4}}, "list of values"),
        ({"args": {"--a": None}}, "list of values"),
        ({"args": {"--a": [1, 1]}}, "given twice"),
        ({"args": {"--a": [None]}}, "None is no value"),
        ({"args": {"--a": [[1]]}}, "is no value"),
        ({"args": {"--a": [float("nan")]}}, "nan is no value"),
        ({"args": {"--a": {"low": 4, "high": 2, "step": 1}}}, "not below"),
        ({"args": {"--a": {"low": 1, "high": 2}}}, "either step or factor"),
        ({"args": {"--a": {"low": 0, "high": 2, "factor": 2}}}, "above 0"),
        ({"args": {"--a": {"low": 0, "high": 1e9, "step": 1}}}, "more than 1000"),
        ({"env": {"A": [True]}}, "in quotes"),
        ({"arguments": {}}, "Extra inputs"),
    ],
)
def test_what_is_no_space_says_why(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Space.model_validate({"engine": "x"} | given)
