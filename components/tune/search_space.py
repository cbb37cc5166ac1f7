"""The `search_space` of `tune`: the values of parameters that its trials try (pure)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kfp_distributed.components.train.describe.value_kinds import MAPPING, read_entry
from kfp_distributed.trainers.programs.program import Program
from kfp_distributed.trainers.programs.signature import Parameter

DISTRIBUTION = "distribution_specification."
"""Start of the name of a key of distribution_specification that is searched."""

_KEYS = ("low", "high", "log", "step", "type")
_TYPES = {"int": int, "float": float}
_LARGEST = 1e300
"""Largest number, so that no distance of two is infinite."""

_MOST_CHOICES = 100
"""Each choice is planned before the start, and is an axis mark in the report."""

_EXAMPLE = '{"low": 1e-5, "high": 1e-2, "log": true} or {"choices": [16, 32]}'


class Float(dict[str, Any]):
    """Numbers from `low` to `high`."""

    def __init__(self, low: float, high: float, *, log: bool = False) -> None:
        """Set the numbers.

        Args:
            low: The smallest number.
            high: The largest number.
            log: Whether the logarithms of the numbers are equally likely, in place of the numbers. Default: false.
        """
        super().__init__(type="float", low=low, high=high, **({"log": True} if log else {}))


class Int(dict[str, Any]):
    """Whole numbers from `low` to `high`."""

    def __init__(self, low: int, high: int, *, log: bool = False, step: int | None = None) -> None:
        """Set the numbers.

        Args:
            low: The smallest number.
            high: The largest number.
            log: As of `Float`. Default: false.
            step: Distance of the numbers from each other. Default: None, all whole numbers.
        """
        others = {**({"log": True} if log else {}), **({} if step is None else {"step": step})}
        super().__init__(type="int", low=low, high=high, **others)


class Choice(dict[str, Any]):
    """Some values of one type."""

    def __init__(self, choices: Sequence[Any]) -> None:
        """Set the values.

        Args:
            choices: 2 to 100 values.
        """
        super().__init__(choices=[*choices])


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: The smallest number.
        high: The largest number.
        is_whole: Whether they are whole numbers.
        log: Whether their logarithms are equally likely. Default: false.
        step: Distance of whole numbers from each other. Default: 1.
    """

    low: float
    high: float
    is_whole: bool
    log: bool = False
    step: int = 1

    @property
    def corners(self) -> tuple[Any, ...]:
        """The values at its ends."""
        return self.low, self.high


@dataclass(frozen=True)
class Choices:
    """Some values of one type.

    Attributes:
        values: The values, as JSON.
    """

    values: tuple[Any, ...]

    @property
    def corners(self) -> tuple[Any, ...]:
        """All values."""
        return self.values


Space = Mapping[str, Range | Choices]
"""What is searched, by the name of the parameter, or by DISTRIBUTION and the key."""


def parse_search_space(
    space: Mapping[str, Any] | str, program: Program, fixed: Mapping[str, Any], distribution: Mapping[str, Any]
) -> Space:
    """Check a search space, and decide which of its numbers are whole, by the signature of the program.

    KFP passes whole numbers in dicts as floats, so that 1 and 1.0 are the same.

    Args:
        space: The dict, or its JSON text.
        program: The program of the trials.
        fixed: The train_parameters that all trials have.
        distribution: The distribution_specification that all trials have.

    Raises:
        ValueError: It is empty, has an unknown key or a wrong value, or a parameter that is fixed, too. Whether the
            program takes the values is known from `corners`.
    """
    entries: Mapping[str, Any] = read_entry("search_space", MAPPING, space)
    if not entries:
        raise ValueError(f"search_space is {{}}; allowed is a dict of parameters, each with {_EXAMPLE}")
    known = {parameter.name: parameter for parameter in program.parameters}
    searched = dict[str, Range | Choices]()
    for name, entry in ((str(name), entry) for name, entry in entries.items()):
        key = name.removeprefix(DISTRIBUTION)
        where, given = ("distribution_specification", distribution) if key != name else ("train_parameters", fixed)
        if key in given:
            raise ValueError(f"search_space has {name!r}, and {where} has {key!r}, too: leave it out of one of them")
        parameter = known.get(name) or program.others if key == name else Parameter(key, "int | str")
        if not parameter:
            names = ", ".join(known) or "none"
            raise ValueError(
                f"search_space: {program.name} has no parameter {name!r}; it has {names}. A key of "
                f"distribution_specification is searched by a name such as {DISTRIBUTION}number_of_workers"
            )
        searched[name] = _parse_entry(name, entry, parameter)
    return searched


def _refuse(name: str, entry: object, allowed: str) -> NoReturn:
    raise ValueError(f"search_space: {name} is {entry!r:.200}; {allowed}")


def _parse_entry(name: str, entry: object, parameter: Parameter) -> Range | Choices:
    if not isinstance(entry, Mapping) or not (set(entry) == {"choices"} or {"low", "high"} <= set(entry) <= {*_KEYS}):
        _refuse(name, entry, f"allowed is {_EXAMPLE}, with the optional keys log, step and type of a range")
    if "choices" in entry:
        return Choices(_parse_choices(name, entry["choices"]))
    low, high, log, step = (entry.get(key, None) for key in ("low", "high", "log", "step"))
    if not all(_is_number(value) for value in (low, high)) or not low < high:
        _refuse(name, entry, "low and high must be finite numbers, and low the smaller one")
    if log not in (None, True, False):
        _refuse(name, entry, "log must be true or false")
    if log and (low <= 0 or step is not None):
        _refuse(name, entry, "a range with log begins above 0, and has no step")
    if not _is_whole(name, entry, parameter):
        if step is not None:
            _refuse(name, entry, "step is for whole numbers: use choices")
        return Range(float(low), float(high), False, bool(log))
    step = 1 if step is None else step
    if not all(_is_number(value) and value == int(value) for value in (low, high, step)):
        _refuse(name, entry, "low, high and step of whole numbers must be whole numbers")
    if step <= 0 or (high - low) % step:
        _refuse(name, entry, "step must be a number above 0 of which high - low is a multiple")
    return Range(int(low), int(high), True, bool(log), int(step))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_whole(name: str, entry: Mapping[str, Any], parameter: Parameter) -> bool:
    """Return whether the numbers of a range are whole ones, by its key type or by the type of the parameter."""
    given, ends = entry.get("type"), (entry["low"], entry["high"])
    if given not in (None, *_TYPES):
        _refuse(name, entry, f"type must be {' or '.join(_TYPES)}")
    allowed = {kind for kind, number in (("int", 1), ("float", 0.5)) if _takes(parameter, number)}
    if not allowed:
        _refuse(name, entry, f"the parameter takes no range, but {parameter.type}: use choices")
    if given and given not in allowed:
        _refuse(name, entry, f"the parameter is of another type: {parameter.type}")
    if given or "float" not in allowed:
        return given != "float"
    if any(end != int(end) for end in ends) or isinstance(parameter.convert(1), float):
        return False
    return _refuse(name, entry, 'it has no type in the signature: set its "type" to "int" or "float"')


def _takes(parameter: Parameter, value: float) -> bool:
    try:
        parameter.convert(value)
    except ValueError:
        return False
    return True


def _parse_choices(name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not 2 <= len(values) <= _MOST_CHOICES:
        _refuse(name, {"choices": values}, f"choices must be a list of 2 to {_MOST_CHOICES} values")
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        _refuse(name, {"choices": values}, f"choices must be JSON, with finite numbers ({error})")
    kinds = {"number" if _is_number(value) else type(value).__name__ for value in values if value is not None}
    if len(kinds) > 1:
        _refuse(name, {"choices": values}, f"choices must be of one type, and these are {', '.join(sorted(kinds))}")
    if any(value in values[:number] for number, value in enumerate(values)):  # 16 and 16.0 are equal.
        _refuse(name, {"choices": values}, "each of the choices must be there once")
    return tuple(values)


def corners(space: Space) -> Iterator[dict[str, Any]]:
    """Yield values of trials at the ends of a search space: each end of each parameter, with the others at each end.

    A program that takes these need not take all values between them, but most errors show here.

    Args:
        space: The search space.
    """
    lowest, highest = ({name: entry.corners[end] for name, entry in space.items()} for end in (0, -1))
    seen = set[str]()
    for name, entry in space.items():
        for value in entry.corners:
            for others in (lowest, highest):
                corner = {**others, name: value}
                if (text := json.dumps(corner, sort_keys=True)) not in seen:
                    seen.add(text)
                    yield corner


def trial_arguments(
    values: Mapping[str, Any], fixed: Mapping[str, Any], distribution: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return train_parameters and distribution_specification of a trial.

    Args:
        values: The values of the trial, by the names of the search space.
        fixed: The train_parameters that all trials have.
        distribution: The distribution_specification that all trials have.
    """
    of_distribution = {name for name in values if name.startswith(DISTRIBUTION)}
    parameters = {name: value for name, value in values.items() if name not in of_distribution}
    own = {name.removeprefix(DISTRIBUTION): values[name] for name in of_distribution}
    return {**fixed, **parameters}, {**distribution, **own}
