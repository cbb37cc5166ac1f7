"""The compiled YAML: current, small, loadable, composable, and accepted by the oldest KFP backend we support."""

import base64
import json
import subprocess
import zlib

import pytest
import yaml
from compiled import SPECS, carried_modules, executors, normalised
from environments import environment
from kfp import compiler, components, dsl

from kfp_distributed.pipelines.specs import write_specs

NAMES = ["prepare_data", "train", "evaluate", "export_model", "train_and_export"]

SIZE_LIMITS = {"train": 75_000, "prepare_data": 30_000, "export_model": 22_000, "evaluate": 18_000}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("specs")
    write_specs(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_committed_yaml_is_current(fresh, name):
    committed = SPECS / f"{name}.yaml"
    assert committed.exists(), "run `make specs` and commit what it writes"
    assert normalised(committed) == normalised(fresh / f"{name}.yaml"), "run `make specs` and commit what it writes"


def test_nothing_else_is_committed_as_a_spec():
    assert sorted(file.stem for file in SPECS.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize(("name", "limit"), SIZE_LIMITS.items())
def test_yaml_stays_small(fresh, name, limit):
    assert (fresh / f"{name}.yaml").stat().st_size < limit


@pytest.mark.parametrize("delivery", [{"image": "registry.example.com/steps:1"}, {"package": "kfp-distributed==0.1.0"}])
def test_yaml_that_carries_no_code_is_half_as_long(tmp_path, delivery):
    write_specs(tmp_path, **delivery)
    assert (tmp_path / "train.yaml").stat().st_size < 30_000
    assert (tmp_path / "train_and_export.yaml").stat().st_size < 60_000


def test_the_pipeline_fits_into_a_workflow(fresh):
    """Argo keeps a copy of each task's container as it is and eight compressed ones, in a Workflow of at most 1 MiB."""
    spec = yaml.safe_load((fresh / "train_and_export.yaml").read_text(encoding="utf-8"))
    text = json.dumps(spec["deploymentSpec"], ensure_ascii=False)
    for sign in "<>&":  # Go writes these as six characters.
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    assert len(text) + 8 * len(base64.b64encode(zlib.compress(text.encode()))) < 0.9 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_no_default_has_a_placeholder(fresh, name):
    """The backend hands a default over as it stands."""
    spec = yaml.safe_load((fresh / f"{name}.yaml").read_text(encoding="utf-8"))
    inputs = [part.get("inputDefinitions", {}) for part in (*spec["components"].values(), spec["root"])]
    assert "{{" not in json.dumps(inputs)


def test_compiling_twice_gives_the_same_bytes(fresh, tmp_path):
    write_specs(tmp_path)
    for name in NAMES:
        assert (tmp_path / f"{name}.yaml").read_bytes() == (fresh / f"{name}.yaml").read_bytes()


def test_each_step_carries_only_what_it_needs(fresh):
    rooms = {
        step: {path.split("/")[1] for path in carried_modules(container)}
        for step, container in executors(fresh / "train_and_export.yaml").items()
    }
    assert rooms == {
        "prepare-data": {"components", "storage"},
        # What runs replicas beside the step, `processes` among it, is in train.yaml alone.
        "train": {"components", "storage", "trainers"},
        # Of `trainers` the one module that lists the start-up remarks of TensorFlow.
        "evaluate": {"components", "storage", "trainers"},
        "export-model": {"components", "storage"},
    }


def test_loaded_components_compose(tmp_path):
    prepare, train, evaluate, export = (
        components.load_component_from_file(str(SPECS / f"{name}.yaml")) for name in NAMES[:4]
    )

    @dsl.pipeline(name="composed")
    def composed(distribution: dict = {"distribution_type": "Job"}):  # noqa: B006
        data = prepare(source="digits")
        fitted = train(
            train_dataset=data.outputs["train_dataset"],
            train_specification={"trainer": "keras_classifier"},
            distribution_specification=distribution,
        )
        scored = evaluate(model=fitted.outputs["model"], dataset=data.outputs["test_dataset"])
        export(model=fitted.outputs["model"], metrics=scored.outputs["metrics"], model_name="digits", bucket="models")

    compiler.Compiler().compile(composed, str(tmp_path / "composed.yaml"))
    assert set(executors(tmp_path / "composed.yaml")) == {"prepare-data", "train", "evaluate", "export-model"}


def test_the_whole_pipeline_loads_as_a_component():
    pipeline = components.load_component_from_file(str(SPECS / "train_and_export.yaml"))
    assert "minimum_accuracy" in pipeline.component_spec.inputs


def test_every_input_has_a_description_for_the_run_form():
    spec = yaml.safe_load((SPECS / "train_and_export.yaml").read_text(encoding="utf-8"))
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    assert [name for name, value in parameters.items() if not value.get("description")] == []
    assert [name for name, value in parameters.items() if "defaultValue" not in value] == []


@pytest.mark.parametrize(
    ("arguments", "image"),
    [
        ({"image": "registry.example.com/kfp-distributed:1"}, "registry.example.com/kfp-distributed:1"),
        ({"package": "https://files.example.com/kfp_distributed-0.1.0-py3-none-any.whl"}, "python:3.11"),
    ],
)
def test_an_image_or_a_package_is_named_instead_of_carrying_code(tmp_path, arguments, image):
    write_specs(tmp_path, **arguments)
    for container in executors(tmp_path / "train_and_export.yaml").values():
        assert carried_modules(container) == {}
        assert container["image"] == image
        install = " ".join(container["command"][:-1])
        assert ("pip install" in install) == ("package" in arguments)
        assert arguments.get("package", "") in install
    assert (tmp_path / "train_and_export.yaml").stat().st_size < 40_000


def test_a_backend_of_kfp_2_0_accepts_every_field():
    """kfp-pipeline-spec 0.2.2 is what KFP 2.0.0 reads a pipeline with: a field it does not know, it refuses."""
    python = environment("kfp-2.0", ["kfp-pipeline-spec==0.2.2", "googleapis-common-protos<1.57", "pyyaml"])
    read = (
        "import sys, yaml\n"
        "from google.protobuf import json_format\n"
        "from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec\n"
        "for name in sys.argv[1:]:\n"
        "    json_format.ParseDict(yaml.safe_load(open(name)), PipelineSpec())\n"
        "    print(name)\n"
    )
    files = [str(SPECS / f"{name}.yaml") for name in NAMES]
    done = subprocess.run([python, "-c", read, *files], capture_output=True, text=True, check=False)
    assert done.stdout.split() == files, done.stderr
