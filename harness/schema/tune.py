"""A tuning: the space of an engine's settings, the plan, and the results of `bench tune`."""

from __future__ import annotations

from itertools import takewhile
from math import isfinite, prod
from random import Random
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.schema.base import Strict, Verdict
from harness.schema.facts import Fact
from harness.schema.setting_types import EngineName

Value = bool | int | float | str
#: The values that one configuration sets, by option or variable; what is not named is the engine's default.
Settings = dict[str, Value]

#: A range of more values than this is a mistake.
_MOST = 1000
_VALUES = "give a list of values, or low and high with either step or factor"


class Parameter(Strict):
    """Values of an option or variable. Leaving it out is always one more choice."""

    values: list[Value] = Field([], description="true: the option alone; false: --no-OPTION")
    low: float | None = Field(None, description="instead of values: the first of a range")
    high: float | None = Field(None, description="the last of the range at most")
    step: float | None = Field(None, gt=0, description="from one value of the range to the next")
    factor: float | None = Field(None, gt=1, description="the same as a factor")
    device: Literal["cpu", "cuda"] | None = Field(None, description="where it has an effect; null: on both")

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value_or_fields: object) -> object:
        if value_or_fields is None or isinstance(value_or_fields, Value):
            raise ValueError(_VALUES)
        if not isinstance(value_or_fields, list):
            return value_or_fields
        for value in value_or_fields:
            if not isinstance(value, Value) or (isinstance(value, float) and not isfinite(value)):
                raise ValueError(f"{value} is no value: give finite numbers, text in quotes, true or false")
        return {"values": value_or_fields}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = (self.low, self.high)
        if self.values and ends == (None, None):
            if len(set(map(str, self.values))) < len(self.values):
                raise ValueError("a value is given twice")
            return self
        if self.values or None in ends or (self.step is None) == (self.factor is None):
            raise ValueError(_VALUES)
        if self.low >= self.high:  # type: ignore[operator]
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.factor is not None and self.low <= 0:  # type: ignore[operator]
            raise ValueError("a range by a factor begins above 0")
        if len(self.choices) > _MOST:
            raise ValueError(f"the range has more than {_MOST} values: give a larger step or factor")
        return self

    @property
    def choices(self) -> list[Value]:
        """The values in their order; whole numbers are written as such."""
        if self.values:
            return self.values
        assert self.low is not None and self.high is not None
        low, step, factor, most = self.low, self.step, self.factor or 1, self.high * (1 + 1e-9)
        values = (low + step * at if step else low * factor**at for at in range(_MOST + 1))
        within = takewhile(lambda value: value <= most, values)
        return [int(value) if value == int(value) else round(value, 12) for value in within]


def _text_only(value: object) -> object:
    """Variables are text: YAML's true is 1 for one program and true for another."""
    if isinstance(value, list) and any(isinstance(value, bool) for value in value):
        raise ValueError('a variable is text: write "1" or "true" in quotes')
    return value


class Space(Strict):
    """A space of settings; the engine as it is, with nothing set, is always a part of it."""

    engine: EngineName
    about: str = Field("", description="one sentence")
    args: dict[Annotated[str, Field(pattern=r"^--[a-z][a-z0-9_-]*$")], Parameter] = Field(
        {}, description="options of the server"
    )
    env: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[Parameter, BeforeValidator(_text_only)],
    ] = Field({}, description="environment variables of the server")

    def on(self, device: str) -> Self:
        """Return the part of the space that has an effect on that device."""
        kept = {
            kind: {
                name: parameter
                for name, parameter in getattr(self, kind).items()
                if parameter.device in (None, device)
            }
            for kind in ("args", "env")
        }
        return self.model_copy(update=kept)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Options and variables."""
        return self.args | self.env

    @property
    def size(self) -> int:
        """Number of configurations, with the one that sets nothing."""
        return prod(1 + len(parameter.choices) for parameter in self.parameters.values())

    def draw(self, count: int, seed: int) -> list[Settings]:
        """Draw `count` configurations that set something, each equally likely and none twice.

        All of them if there are no more.
        """
        others = range(1, self.size)
        numbers = Random(seed).sample(others, min(count, len(others)))
        return [self._numbered(number) for number in numbers]

    def _numbered(self, number: int) -> Settings:
        """Configurations are counted with the first parameter's value changing fastest; 0 sets nothing."""
        settings: Settings = {}
        for name, parameter in self.parameters.items():
            number, place = divmod(number, 1 + len(parameter.choices))
            if place:
                settings[name] = parameter.choices[place - 1]
        return settings

    def arguments(self, settings: Settings) -> list[str]:
        """The command-line arguments that these settings mean."""
        return [word for name, value in settings.items() if name in self.args for word in _words(name, value)]

    def variables(self, settings: Settings) -> dict[str, str]:
        """The environment that these settings mean."""
        return {name: str(value) for name, value in settings.items() if name in self.env}

    @property
    def flags(self) -> list[str]:
        """Every option that a configuration may have."""
        return sorted(
            {_words(name, value)[0] for name, parameter in self.args.items() for value in parameter.choices}
        )


def _words(name: str, value: Value) -> list[str]:
    """An option with its value: `--flag`, `--no-flag`, or `--option 4`."""
    if isinstance(value, bool):
        return [name if value else f"--no-{name.removeprefix('--')}"]
    return [name, str(value)]


State = Literal["default", "finalist", "left out", "failed"]


class Configuration(Strict):
    """One point of a space. The first of a plan is the engine as it is, whose `settings` are empty."""

    label: str = Field(description="as in tables and figures")
    variant: str | None = Field(description="its name in the run; null: the default")
    settings: Settings = Field({}, description="by option or variable")


class TunePlan(Strict):
    """The way in which the settings of an engine are tuned."""

    engine: EngineName
    base: str | None = Field(None, description="variant that every configuration is laid over")
    space: Space = Field(description="without what has no effect on the run's device")
    configurations: list[Configuration] = Field(description="the default, then those drawn from the space")
    objective: str = Field(description="what is to be best: tpot_p50, output_tok_per_s")
    limits: str | None = Field(None, description="as given with --slo; all must hold")
    reduction: int = Field(3, ge=2, description="one in so many goes on at each rung")
    finalists: int = Field(2, ge=1, description="compared with the default at the end")

    @property
    def rounds(self) -> int:
        """Repeats before the comparison at the end, at most: 1, or with a reduction of 3 also 3, 9 …

        Repeats are counted on from here in the comparison.
        """
        rung, left = 1, len(self.configurations) / self.reduction
        while left > self.finalists:
            rung, left = rung * self.reduction, left / self.reduction
        return rung

    def cells(self, repeats: int) -> int:
        """About how many are measured, with so many repeats of the default and each finalist at the end."""
        count = len(self.configurations)
        return count + self.later(count, 1) + (1 + min(self.finalists, count - 1)) * repeats

    def later(self, going: float, repeats: int) -> int:
        """About how many cells follow so many repeats of `going` configurations, before the comparison."""
        cells, rung = 0.0, 1
        while rung < repeats:
            rung *= self.reduction
        for done in range(repeats, self.rounds):
            if done == rung:
                rung, going = rung * self.reduction, max(going / self.reduction, 1.0)
            cells += going
        return round(cells)


class ConfigurationFound(Configuration):
    """Measurements of a configuration before the comparison at the end."""

    state: State
    values: list[float | None] = Field([], description="the objective in each repeat; null: all failed")
    invalid: int = Field(0, description="cells among them that are not valid")
    limits: dict[str, float | None] = Field({}, description="mean over repeats, by limit")
    reason: str = Field("", description="of a configuration that failed")


class FinalistFound(Strict):
    """A finalist against the default, by repeats of their own."""

    label: str
    value: float | None = Field(description="of the objective; null: it could not be measured")
    default: float | None
    ratio: float | None = Field(description="value / default")
    ci: tuple[float, float] | None = Field(None, description="of the ratio, 95 %")
    verdict: Verdict = Field(description="of the finalist, at 5 % for all finalists together (Holm)")
    repeats: tuple[int, int] = Field(description="of the finalist and of the default")
    within: bool | None = Field(description="whether it is within every limit; null: there are none")


class TuneResults(Strict):
    """Results of a tuning."""

    plan: TunePlan
    configurations: list[ConfigurationFound]
    finalists: list[FinalistFound]
    best: str | None = Field(description="label of the best finalist that is better than the default")
    default_invalid: Fact | None = Field(
        None, description="why cells of the default are invalid, so that nothing is best; null: all are valid"
    )
