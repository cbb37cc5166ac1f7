"""Values that kfp refuses without the library, in pipelines that kfp compiles and runs on this machine."""

import pytest
import yaml
from google.protobuf.json_format import MessageToDict
from kfp import compiler, dsl
from kfp.dsl.types.type_utils import InconsistentTypeException

from kfp_distributed.components import Split, TensorFlow, prepare_data
from kfp_distributed.components.kfp_interface.input_values import accept_input_values
from kfp_distributed.components.kfp_interface.packaging import make_step
from kfp_distributed.pipelines.local_run import local_run
from kfp_distributed.pipelines.train_and_export import train_and_export
from kfp_distributed.storage.dataset import DatasetManifest


@accept_input_values
@dsl.component(install_kfp_package=False)
def show(x: float) -> str:
    return repr(x)


@dsl.component(install_kfp_package=False)
def one() -> int:
    return 1


@dsl.pipeline
def inner(n: int) -> str:
    return show(x=n).output


@dsl.pipeline
def of_constant() -> str:
    return show(x=0).output


@dsl.pipeline
def of_parameter(n: int = 2) -> str:
    return show(x=n).output


@dsl.pipeline
def of_output() -> str:
    return show(x=one().output).output


@dsl.pipeline
def of_inner_pipeline(n: int = 3) -> str:
    return inner(n=n).output


@pytest.mark.takes(13)
@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [(of_constant, "0.0"), (of_parameter, "2.0"), (of_output, "1.0"), (of_inner_pipeline, "3.0")],
)
def test_an_int_arrives_as_a_float(tmp_path, pipeline, expected):
    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    with local_run(tmp_path, embedded_store=False):
        assert pipeline().output == expected


def test_items_of_a_parallel_for_may_be_whole(tmp_path):
    @dsl.pipeline
    def sweep(bounds: list[int]):
        with dsl.ParallelFor([0, 0.5]) as bound:
            show(x=bound)
        with dsl.ParallelFor([{"bound": 0}]) as item:
            show(x=item.bound)
        with dsl.ParallelFor(bounds) as bound:
            show(x=bound)

    compiler.Compiler().compile(sweep, str(tmp_path / "sweep.yaml"))
    spec = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    tasks = [
        task["inputs"]["parameters"]
        for component in spec["components"].values()
        for task in component.get("dag", {}).get("tasks", {}).values()
    ]
    values = [values["x"]["componentInputParameter"] for values in tasks if "x" in values]
    assert len(values) == 3
    assert all(value.startswith("pipelinechannel--") for value in values)
    parameters = spec["components"]["comp-show"]["inputDefinitions"]["parameters"]
    assert parameters["x"]["parameterType"] == "NUMBER_DOUBLE"


def test_a_fraction_of_a_split_may_be_whole_or_an_item_of_a_loop(tmp_path):
    @dsl.pipeline
    def sweep(seed: int = 3):
        with dsl.ParallelFor([0, 0.5]) as fraction:
            prepare_data(source="digits", split=Split(validation_fraction=fraction, test_fraction=0, seed=seed))

    with local_run(tmp_path, embedded_store=False) as run:
        sweep()
    rows = [
        DatasetManifest.from_json(path.read_text()).rows
        for path in run.artifacts.glob("**/validation_dataset/dataset.json")
    ]
    assert sorted(rows) == [0, 898]


def test_a_pipeline_takes_a_whole_number_too():
    @dsl.pipeline
    def outer():
        train_and_export(bound=0)

    constant = outer.pipeline_spec.root.dag.tasks["train-and-export"].inputs.parameters["bound"]
    assert constant.runtime_value.constant.number_value == 0


@pytest.mark.parametrize("value", [True, "0.5", [0]])
def test_other_types_are_still_refused(value):
    def half(x: float) -> None: ...

    with pytest.raises(InconsistentTypeException, match="incompatible with the input type 'NUMBER_DOUBLE'"):
        make_step(half, image="steps:1")(x=value)


def test_a_pipeline_takes_a_distribution_as_a_dict():
    @dsl.pipeline
    def outer():
        train_and_export(distribution_specification=TensorFlow(workers=2))

    (task,) = outer.pipeline_spec.root.dag.tasks.values()
    value = task.inputs.parameters["distribution_specification"].runtime_value.constant
    assert MessageToDict(value) == {"distribution_type": "TF", "number_of_workers": 2}


def test_a_pipeline_takes_no_distribution_with_a_parameter():
    """KFP replaces no placeholder in an argument of a pipeline, so `train` would read its name as the value."""

    @dsl.pipeline
    def outer(workers: int):
        with pytest.raises(
            ValueError, match=r"^distribution_specification has a value of the pipeline .* pass .*train"
        ):
            train_and_export(distribution_specification=TensorFlow(workers=workers))
        train_and_export(distribution_specification=TensorFlow(workers=2))

    assert outer
