"""Search spaces: their numbers, what is refused, and the corners at which a program is checked."""

import json
import math

import pytest

from kfp_distributed.components.tune.search_space import (
    Choice,
    Choices,
    Float,
    Int,
    Range,
    corners,
    parse_search_space,
    trial_arguments,
)
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.programs.program import check_parameters, parse_program

KERAS = parse_program({"trainer": "keras_classifier"})
COMMAND = parse_program({"command": ["python", "{model_dir}"]})


def fit(train_dir, model_dir, rate: float, width: int, depth=2, kind: str = "a", **others): ...


FUNCTION = parse_program(train_specification(fit))


@pytest.mark.parametrize("program", [KERAS, FUNCTION, COMMAND])
def test_python_and_json_mean_the_same(program):
    names = {"keras_classifier": ("learning_rate", "batch_size"), "fit": ("rate", "width")}
    rate, size = names.get(program.name, ("rate", "size"))
    space = {
        rate: Float(1e-5, 1, log=True),
        size: Int(1, 9, step=2),
        "epochs" if size != "width" else "x": Choice([1, 2]),
    }
    parsed = parse_search_space(space, program, {}, {})
    assert [*parsed.values()] == [Range(1e-5, 1.0, False, log=True), Range(1, 9, True, step=2), Choices((1, 2))]
    # Kubeflow passes whole numbers in dicts as floats.
    as_floats = json.loads(json.dumps(space), parse_int=float)
    assert parse_search_space(json.dumps(as_floats), program, {}, {}) == parsed
    assert [type(end) for end in parsed[size].corners] == [int, int]


def test_the_signature_says_which_numbers_are_whole():
    ends = {"low": 1.0, "high": 4.0}
    space = {"rate": ends, "width": ends, "distribution_specification.number_of_workers": ends}
    parsed = parse_search_space(space, FUNCTION, {}, {})
    assert [entry.is_whole for entry in parsed.values()] == [False, True, True]
    assert parse_search_space({"depth": {"low": 1, "high": 2.5}}, FUNCTION, {}, {})["depth"] == Range(1.0, 2.5, False)


@pytest.mark.parametrize(
    ("space", "refused"),
    [
        ({}, "allowed is a dict of parameters"),
        ("[", "search_space = .* is not a dict, or the JSON text"),
        ({"learning_rate": [1, 2]}, 'allowed is {"low"'),
        ({"learning_rate": {"low": 1}}, 'allowed is {"low"'),
        ({"learning_rate": {"low": 1, "high": 2, "base": 3}}, 'allowed is {"low"'),
        ({"learning_rate": {"low": 1, "high": 2, "choices": [1, 2]}}, 'allowed is {"low"'),
        ({"learning_rate": {"low": 1, "high": 1}}, "low the smaller one"),
        ({"learning_rate": {"low": "1", "high": 2}}, "must be finite numbers"),
        ({"learning_rate": {"low": 0, "high": float("inf")}}, "must be finite numbers"),
        ({"learning_rate": {"low": 0, "high": 1, "log": True}}, "begins above 0"),
        ({"learning_rate": {"low": 1, "high": 2, "log": True, "step": 1}}, "has no step"),
        ({"learning_rate": {"low": 0, "high": 1, "step": 0.25}}, "step is for whole numbers: use choices"),
        ({"batch_size": {"low": 1, "high": 8, "step": 2}}, "high - low is a multiple"),
        ({"batch_size": {"low": 1.5, "high": 3}}, "the parameter is of another type: int|must be whole numbers"),
        ({"batch_size": Float(1, 3)}, "the parameter is of another type"),
        ({"batch_size": {"low": 1, "high": 3, "type": "long"}}, "type must be int or float"),
        ({"batch_size": Choice([16])}, "2 to 100 values"),
        ({"batch_size": Choice(range(1, 102))}, "2 to 100 values"),
        ({"batch_size": Choice([16, "32"])}, "of one type, and these are number, str"),
        ({"batch_size": Choice([16, 16.0])}, "must be there once"),
        ({"batch_size": Choice([1.0, math.inf])}, "choices must be JSON, with finite numbers"),
        ({"batch_size": Choice([[1.0], [math.inf]])}, "choices must be JSON, with finite numbers"),
        ({"learning_rate": {"low": 0, "high": 10**400}}, "must be finite numbers"),
        ({1: {"low": 0, "high": 1}}, "keras_classifier has no parameter '1'; it has"),
        ({"rate": Float(1, 2)}, "keras_classifier has no parameter 'rate'; it has .*learning_rate"),
        ({"epochs": Int(1, 2)}, "and train_parameters has 'epochs', too"),
        ({"distribution_specification.number_of_workers": Int(1, 2)}, "and distribution_specification has"),
    ],
)
def test_wrong_spaces_are_refused(space, refused):
    with pytest.raises(ValueError, match=refused):
        parse_search_space(space, KERAS, {"epochs": 3}, {"number_of_workers": 2})


def test_a_parameter_of_texts_takes_no_range():
    with pytest.raises(ValueError, match="the parameter takes no range, but str: use choices"):
        parse_search_space({"kind": {"low": 1, "high": 3}}, FUNCTION, {}, {})
    assert parse_search_space({"other": Choice([None, 1])}, FUNCTION, {}, {})["other"] == Choices((None, 1))


def test_a_number_without_a_type_is_ambiguous():
    with pytest.raises(ValueError, match=r'dropout is .* set its "type" to "int" or "float"'):
        parse_search_space({"dropout": {"low": 0, "high": 1}}, COMMAND, {}, {})


def test_the_corners_have_each_end_of_each_parameter():
    space = {"learning_rate": Float(0.1, 1), "batch_size": Choice([8, 16, 32])}
    parsed = parse_search_space(space, KERAS, {}, {})
    found = [(corner["learning_rate"], corner["batch_size"]) for corner in corners(parsed)]
    assert sorted(found) == [(0.1, 8), (0.1, 16), (0.1, 32), (1.0, 8), (1.0, 16), (1.0, 32)]
    lowest, *_ = corners(parse_search_space({"learning_rate": {"low": -1, "high": 1}}, KERAS, {}, {}))
    with pytest.raises(ValueError, match="learning_rate is -1"):
        check_parameters(KERAS, trial_arguments(lowest, {"epochs": 2}, {})[0])


def test_keys_of_the_distribution_are_apart():
    values = {"learning_rate": 0.1, "distribution_specification.number_of_workers": 2}
    fixed = {"epochs": 3}, {"distribution_type": "TF"}
    expected = {"epochs": 3, "learning_rate": 0.1}, {"distribution_type": "TF", "number_of_workers": 2}
    assert trial_arguments(values, *fixed) == expected
