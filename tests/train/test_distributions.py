"""The typed builders of a distribution_specification, and its JSON Schema."""

import inspect
import json
from typing import get_args, get_type_hints

import jsonschema
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from kfp import dsl
from train.test_kinds import INVALID
from train.test_specification_properties import VALID

from kfp_distributed.components import Mpi, PyTorch, SingleJob, TensorFlow, Toleration, Volume, train
from kfp_distributed.components.train.describe.distributions import (
    KEYS,
    TYPES,
    Distribution,
    Launched,
    Ranked,
    distribution_schema,
    parse_distribution,
    types_of,
)
from kfp_distributed.components.train.describe.keys import keys_of
from kfp_distributed.components.train.describe.specification import DistributionType
from kfp_distributed.components.train.describe.value_kinds import is_blank, shown


def is_of_json(value):
    """Return whether JSON has a value. The schema does not check numbers in texts."""
    if isinstance(value, int | float):
        return abs(value) < 1e300
    return value is None or isinstance(value, list | dict)


SCHEMA = jsonschema.Draft202012Validator(distribution_schema())


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (SingleJob(), {"distribution_type": "Job"}),
        (
            TensorFlow(workers=3, parameter_servers=2),
            {"distribution_type": "TF", "number_of_workers": 3, "number_of_parameter_servers": 2},
        ),
        (
            Mpi(workers=2, worker_gpus=4, shared_memory="8Gi", total_timeout="24h", restart_limit=0),
            {
                "distribution_type": "MPI",
                "number_of_workers": 2,
                "worker_gpus": 4,
                "shared_memory": "8Gi",
                "total_timeout": "24h",
                "restart_limit": 0,
            },
        ),
        (
            PyTorch(
                node_selector={"example.com/pool": "gpu"},
                tolerations=[
                    Toleration(key="spot", effect="NoExecute", toleration_seconds=60),
                    {"operator": "Exists"},
                ],
                volumes=(Volume(name="corpus", path="/mnt/corpus", read_only=True),),
                preemption_limit="unlimited",
            ),
            {
                "distribution_type": "PyTorch",
                "node_selector": {"example.com/pool": "gpu"},
                "tolerations": [
                    {"key": "spot", "effect": "NoExecute", "tolerationSeconds": 60},
                    {"operator": "Exists"},
                ],
                "volumes": [{"name": "corpus", "path": "/mnt/corpus", "read_only": True}],
                "preemption_limit": "unlimited",
            },
        ),
    ],
)
def test_a_builder_makes_the_dict(distribution, expected):
    assert distribution.to_dict() == expected
    assert json.loads(json.dumps(expected)) == expected
    SCHEMA.validate(expected)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: TensorFlow(workers=2.5), "number_of_workers = 2.5 is not a whole number from 1 to 10000"),
        (lambda: SingleJob(workers=2), "number_of_workers = 2 is not 1; a Job has one pod"),
        (lambda: Mpi(worker_cpus="8 cores"), "worker_cpus = '8 cores' is not a number of CPUs"),
        (lambda: TensorFlow(parameter_servers=0, ps_memory="1Gi"), "ps_memory = '1Gi' is not used when"),
        (lambda: PyTorch(volumes=[Volume(name="a", path="b")]), "path = 'b' is not an absolute path"),
    ],
)
def test_a_builder_refuses_what_the_step_refuses(build, error):
    with pytest.raises(ValueError, match=f"^distribution_specification: .*{error}"):
        build()


def test_values_of_numpy_become_plain_values():
    """They come from a program that writes a pipeline for each row of a table. kfp refuses them."""
    toleration = Toleration(key="spot", effect="NoExecute", toleration_seconds=np.int32(60))
    volume = {"name": "corpus", "path": "/mnt/corpus", "read_only": np.True_}
    distribution = TensorFlow(
        workers=np.int64(3), worker_cpus=np.float32(0.5), keep_job=np.True_, tolerations=[toleration], volumes=[volume]
    )
    assert json.loads(json.dumps(distribution.to_dict())) == {
        "distribution_type": "TF",
        "number_of_workers": 3,
        "worker_cpus": 0.5,
        "keep_job": True,
        "tolerations": [{"key": "spot", "effect": "NoExecute", "tolerationSeconds": 60}],
        "volumes": [{"name": "corpus", "path": "/mnt/corpus", "read_only": True}],
    }


@pytest.mark.parametrize("kind", [Distribution, Launched, Ranked])
def test_a_class_without_a_type_of_job_makes_no_dict(kind):
    with pytest.raises(
        TypeError, match=f"{kind.__name__} is no type of job; use SingleJob, Mpi, TensorFlow or PyTorch"
    ):
        kind(workers=2)


def test_a_key_of_another_type_is_no_parameter():
    with pytest.raises(TypeError, match="unexpected keyword argument 'parameter_servers'"):
        Mpi(parameter_servers=2)


def input_of_the_task(make):
    """Compile a pipeline with two parameters; return the distribution_specification of its task."""

    @dsl.pipeline
    def pipeline(data: dsl.Input[dsl.Dataset], workers: int, limit: int):
        train(
            train_dataset=data,
            train_specification={"trainer": "keras_classifier"},
            distribution_specification=make(workers, limit),
        )

    inputs = pipeline.pipeline_spec.root.dag.tasks["train"].inputs.parameters
    return MessageToDict(inputs["distribution_specification"].runtime_value.constant)


def test_a_builder_can_be_passed_to_the_component():
    assert input_of_the_task(lambda workers, limit: TensorFlow(workers=3)) == {
        "distribution_type": "TF",
        "number_of_workers": 3,
    }


def test_values_of_a_builder_can_be_parameters_of_the_pipeline():
    assert input_of_the_task(lambda workers, limit: PyTorch(workers=workers, min_workers=3, restart_limit=limit)) == {
        "distribution_type": "PyTorch",
        "min_workers": 3,
        "number_of_workers": "{{$.inputs.parameters['pipelinechannel--workers']}}",
        "restart_limit": "{{$.inputs.parameters['pipelinechannel--limit']}}",
    }


def test_parts_of_values_can_be_parameters_of_the_pipeline():
    workers = "{{$.inputs.parameters['pipelinechannel--workers']}}"
    assert input_of_the_task(
        lambda workers, limit: TensorFlow(
            worker_memory=f"{workers}Gi",
            node_selector={"pool": workers},
            tolerations=[Toleration(key="pool", value=workers)],
            volumes=[Volume(name="scratch", path="/mnt/scratch", size=f"{workers}Gi")],
        )
    ) == {
        "distribution_type": "TF",
        "worker_memory": f"{workers}Gi",
        "node_selector": {"pool": workers},
        "tolerations": [{"key": "pool", "value": workers}],
        "volumes": [{"name": "scratch", "path": "/mnt/scratch", "size": f"{workers}Gi"}],
    }


@pytest.mark.parametrize("name", ["node_selector", "tolerations", "volumes"])
def test_a_dict_or_list_of_the_pipeline_is_refused(name):
    with pytest.raises(ValueError, match=f"^distribution_specification: {name} = .*cannot insert a dict or list"):
        input_of_the_task(lambda workers, limit: PyTorch(**{name: workers}))


@dsl.component(base_image="python:3.11")
def settings_of_team() -> dict:
    return {"key": "pool"}


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda task, data: PyTorch(tolerations=[task.output]), "tolerations has .* cannot insert a dict or list"),
        (lambda task, data: PyTorch(tolerations=f"{task.output}"), "tolerations has .* cannot insert a dict or list"),
        (lambda task, data: PyTorch(workers=task.output), "number_of_workers has .* cannot insert a dict or list"),
        (lambda task, data: PyTorch(workers=data), "number_of_workers has .* is an artifact; use a parameter"),
        (lambda task, data: PyTorch(workers=task), "number_of_workers has .* use an output of the task"),
    ],
)
def test_a_value_that_kfp_cannot_insert_is_refused(make, error):
    """KFP compiles it, and the run fails with an error of JSON before the step starts."""

    @dsl.pipeline
    def pipeline(data: dsl.Input[dsl.Dataset]):
        task = settings_of_team()
        with pytest.raises(ValueError, match=f"^distribution_specification: {error}"):
            make(task, data)

    assert pipeline


def test_an_item_of_a_loop_may_be_a_number_and_no_dict():
    @dsl.pipeline
    def pipeline(data: dsl.Input[dsl.Dataset]):
        settings_of_team()
        with dsl.ParallelFor([{"workers": 2}]) as item:
            assert PyTorch(workers=item.workers).to_dict()["number_of_workers"] is not None
            with pytest.raises(ValueError, match="cannot insert a dict or list"):
                PyTorch(tolerations=[item])
            settings_of_team()

    assert pipeline


def test_other_values_are_checked_when_the_pipeline_is_written():
    with pytest.raises(ValueError, match="restart_limit = -1 is not a whole number"):
        input_of_the_task(lambda workers, limit: TensorFlow(workers=workers, restart_limit=-1))


@pytest.mark.parametrize(("kind", "name"), [(Toleration, "operator"), (Toleration, "effect"), (Volume, "access_mode")])
def test_type_checkers_know_the_values_of_a_choice(kind, name):
    literal, _ = get_args(get_type_hints(kind)[name])
    assert [*get_args(literal)] == keys_of(kind)[name].kind.schema["enum"]


def test_a_label_without_a_value_is_refused():
    """A dict with None is refused. A builder must not leave the label out: the pods would run anywhere."""
    with pytest.raises(ValueError, match=r"node_selector = \{'pool': None\}"):
        parse_distribution({"node_selector": {"pool": None}})
    with pytest.raises(ValueError, match=r"node_selector = \{'pool': None\}"):
        SingleJob(node_selector={"pool": None})


def test_the_types_are_those_of_the_specification():
    assert tuple(TYPES) == get_args(DistributionType)
    assert train.component_spec.inputs["distribution_specification"].type == "Dict"


def test_a_parameter_of_a_builder_has_the_name_of_the_key_or_is_shorter():
    for kind in TYPES.values():
        parameters = inspect.signature(kind).parameters
        assert len(parameters) == len(keys_of(kind))
        assert {*keys_of(kind)} == {f"number_of_{name}" if f"number_of_{name}" in KEYS else name for name in parameters}


@pytest.mark.takes(3)
@settings(max_examples=300)
@given(VALID)
def test_the_schema_accepts_what_the_step_accepts(spec):
    parse_distribution(spec)
    SCHEMA.validate({key: value for key, value in spec.items() if not is_blank(value)})


@pytest.mark.parametrize(
    "spec",
    [
        {"distribution_type": "tf"},
        {"number_of_worker": 3},
        {"distribution_type": "MPI", "number_of_parameter_servers": 1},
        {"distribution_type": "TF", "number_of_workers": 0},
        {"distribution_type": "TF", "number_of_workers": 2.5},
        {"distribution_type": "TF", "number_of_workers": True},
        {"worker_memory": "8 GB"},
        {"volumes": [{"path": "/data"}]},
        {"tolerations": [{"key": "a", "operator": "Is"}]},
        {"keep_job": "maybe"},
        {"termination_grace_seconds": 5.5},
        {"node_selector": {"a b": "c"}},
        *({key: value} for key, values in INVALID.items() for value in values if is_of_json(value)),
    ],
    ids=shown,
)
def test_the_schema_refuses_what_the_step_refuses(spec):
    with pytest.raises(ValueError, match=r"^distribution_specification"):
        parse_distribution(spec)
    assert not SCHEMA.is_valid(spec)


def test_each_key_has_a_meaning_and_a_default():
    for name, key in KEYS.items():
        assert key.meaning.endswith("."), name
        assert key.default is not None or key.default_text, name
        assert types_of(name), name
