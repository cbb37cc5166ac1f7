"""The parameter `split`: its typed builder, its checks and its JSON Schema."""

import re

import jsonschema
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from kfp import dsl

from kfp_distributed.components import SingleJob, Split, prepare_data
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.split_parameter import KEYS, MAXIMUM_SEED, parse_split, split_schema
from kfp_distributed.components.train.describe.value_kinds import shown
from kfp_distributed.pipelines.train_and_export import train_and_export

SCHEMA = jsonschema.Draft202012Validator(split_schema())
DEFAULTS = {
    "validation_fraction": 0.1,
    "test_fraction": 0.1,
    "validation_source": "",
    "test_source": "",
    "group_column": "",
    "time_column": "",
    "seed": 0,
}


@pytest.mark.parametrize("split", [None, "", {}, "{}", {"seed": None, "group_column": "", "test_fraction": ""}])
def test_the_defaults(split):
    assert parse_split(split) == DEFAULTS
    options = vars(Options())
    assert {name: value for name, value in DEFAULTS.items() if "source" not in name}.items() <= options.items()


@pytest.mark.parametrize(
    ("split", "same"),
    [
        ({"test_fraction": 0.25}, {"test_fraction": 0.25}),
        ({"test_fraction": "0.25"}, {"test_fraction": 0.25}),
        ({"validation_fraction": 0, "test_fraction": "1.0"}, {"validation_fraction": 0.0, "test_fraction": 1.0}),
        ({"seed": 5.0}, {"seed": 5}),
        ({"seed": "5"}, {"seed": 5}),
        ({"seed": "5.0"}, {"seed": 5}),
        ({"seed": MAXIMUM_SEED}, {"seed": MAXIMUM_SEED}),
        ('{"group_column": "patient"}', {"group_column": "patient"}),
        (
            {"time_column": "sold\non", "test_source": "s3://b/t.csv"},
            {"time_column": "sold\non", "test_source": "s3://b/t.csv"},
        ),
    ],
)
def test_values_in_the_forms_of_kfp_are_accepted(split, same):
    assert parse_split(split) == DEFAULTS | same
    if isinstance(split, dict):
        SCHEMA.validate(split)


WRONG = [
    (
        {"group": "patient"},
        "'group' = 'patient' is not a known key; did you mean group_column? Known keys: validation_",
    ),
    ({"test_fractoin": 0.2}, "'test_fractoin' = 0.2 is not a known key; did you mean test_fraction"),
    ({"shuffle": True}, "'shuffle' = True is not a known key; Known keys: validation_fraction, test_fraction,"),
    (
        {"test_fraction": "a tenth"},
        "test_fraction = 'a tenth' is not a number from 0 to less than 1 (1 only with like)",
    ),
    ({"test_fraction": -0.1}, "test_fraction = -0.1 is not a number from 0"),
    ({"test_fraction": 1.5}, "test_fraction = 1.5 is not a number from 0"),
    ({"test_fraction": True}, "test_fraction = True is not a number from 0"),
    ({"seed": -1}, "seed = -1 is not a whole number from 0 to 9007199254740991"),
    ({"seed": 0.5}, "seed = 0.5 is not a whole number from 0"),
    ({"group_column": 5}, "group_column = 5 is not the name of a column"),
    ({"test_source": ["a.csv"]}, "test_source = ['a.csv'] is not a path or an address"),
]


@pytest.mark.parametrize(("split", "error"), WRONG, ids=shown)
def test_wrong_entries_are_refused(split, error):
    with pytest.raises(ValueError, match=f"^split: {re.escape(error)}"):
        parse_split(split)
    if "a tenth" not in split.values():
        assert not SCHEMA.is_valid(split)
    if split.keys() <= KEYS.keys():
        with pytest.raises(ValueError, match=f"^split: {re.escape(error)}"):
            Split(**split)


def test_what_is_no_dict_is_refused():
    with pytest.raises(ValueError, match=r"^split = 'patient' is not a dict"):
        parse_split("patient")


def test_the_builder_makes_the_dict():
    assert Split().to_dict() == {}
    split = Split(group_column="patient", test_fraction=np.float32(0.5), validation_fraction=0, seed=np.int64(3))
    assert split.to_dict() == {"validation_fraction": 0, "test_fraction": 0.5, "group_column": "patient", "seed": 3}
    SCHEMA.validate(split.to_dict())


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"test_fraction": 0.95}, "validation_fraction 0.1 and test_fraction 0.95: their sum must be below 1"),
        (
            {"group_column": "g", "time_column": "t"},
            "group_column 'g' and time_column 't': a split follows one of them",
        ),
    ],
)
def test_the_builder_refuses_contradictions(values, error):
    with pytest.raises(ValueError, match=f"^split: {error}"):
        Split(**values)


def test_all_rows_may_be_of_the_test():
    """With `like`, which the builder does not know."""
    assert Split(validation_fraction=0, test_fraction=1).to_dict() == {"validation_fraction": 0, "test_fraction": 1}


def test_values_of_the_builder_can_be_parameters_of_the_pipeline():
    @dsl.pipeline
    def pipeline(column: str, names: list[str]):
        prepare_data(source="a.csv", split=Split(group_column=column, seed=1))
        with pytest.raises(ValueError, match=r"^split: group_column has .*cannot insert a dict or list"):
            Split(group_column=names)
        with pytest.raises(ValueError, match=r"^split has a value of the pipeline at group_column.* `prepare_data`"):
            train_and_export(split=Split(group_column=column))
        train_and_export(split=Split(group_column="patient"))

    tasks = pipeline.pipeline_spec.root.dag.tasks
    given = [tasks[name].inputs.parameters["split"].runtime_value.constant for name in sorted(tasks)]
    assert list(map(MessageToDict, given)) == [
        {"group_column": "{{$.inputs.parameters['pipelinechannel--column']}}", "seed": 1},
        {"group_column": "patient"},
    ]


@pytest.mark.parametrize(
    ("step", "inputs", "error"),
    [
        (
            prepare_data,
            {"split": SingleJob()},
            r"split of prepare_data takes no SingleJob\(…\), which is for `distrib.*: pass Split\(…\) or a dict$",
        ),
        (
            prepare_data,
            {"distribution_specification": SingleJob(worker_cpus=2)},
            r"distribution_specification of prepare_data takes no SingleJob\(…\), .* of `train` and .*: pass a dict$",
        ),
        (train_and_export, {"split": SingleJob()}, r"split takes no SingleJob\(…\), .*: pass Split\(…\) or a dict$"),
        (
            train_and_export,
            {"distribution_specification": Split(seed=1)},
            r"distribution_specification takes no Split\(…\), .*: "
            r"pass SingleJob\(…\) or TensorFlow\(…\) or Mpi\(…\) or PyTorch\(…\) or a dict$",
        ),
    ],
)
def test_a_builder_of_another_parameter_is_refused_when_the_pipeline_is_written(step, inputs, error):
    @dsl.pipeline
    def pipeline():
        with pytest.raises(ValueError, match=f"^{error}"):
            step(source="a.csv", **inputs)
        prepare_data(source="a.csv")

    assert pipeline


def test_each_key_has_a_meaning_and_a_default():
    assert [*KEYS] == [*DEFAULTS]
    for name, key in KEYS.items():
        assert key.meaning.endswith("."), name
        assert key.default is not None or key.default_text, name
