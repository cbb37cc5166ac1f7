"""The compiled YAML is current, small, loadable, and accepted by the oldest supported KFP backend."""

import json
import subprocess

import pytest
import yaml
from compiled import SPECS, executors, installed_packages
from environments import environment
from kfp import compiler, components, dsl

from kfp_distributed.components import Delivery, steps
from kfp_distributed.components.kfp_interface.packaging import bootstrap
from kfp_distributed.pipelines.specs import dump, write_specs

pytestmark = pytest.mark.takes(22)

NAMES = [
    "prepare_data",
    "train",
    "evaluate",
    "export_model",
    "fingerprint_source",
    "predict",
    "deploy_model",
    "import_model",
    "evaluate_language_model",
    "tune",
    "train_and_export",
    "train_and_deploy",
    "fine_tune_and_deploy",
    "tune_train_and_export",
]
DELIVERIES = {
    "namespace": Delivery.namespace(),
    "image": Delivery.image("registry.example.com/team/steps:0123456789ab", "registry.example.com/team/evaluate:0123"),
    "package": Delivery.package("https://files.example.com/kfp_distributed-0.1.0-py3-none-any.whl"),
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("specs")
    write_specs(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_committed_yaml_is_current(fresh, name):
    committed = SPECS / f"{name}.yaml"
    assert committed.exists(), "run `make specs` and commit what it writes"
    assert committed.read_text() == (fresh / f"{name}.yaml").read_text(), "run `make specs` and commit what it writes"


def test_no_other_files_are_committed():
    assert sorted(file.stem for file in SPECS.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("delivery", DELIVERIES.values(), ids=DELIVERIES.keys())
def test_component_without_descriptions_is_small(tmp_path, delivery):
    """People can read it, and a pipeline can have many of them."""
    write_specs(tmp_path, delivery)
    for name in NAMES[:5]:
        spec = yaml.safe_load((tmp_path / f"{name}.yaml").read_text(encoding="utf-8"))
        assert len(dump(_without_descriptions(spec))) < 13 * 1024, name


def _without_descriptions(node):
    if isinstance(node, dict):
        return {key: _without_descriptions(value) for key, value in node.items() if key != "description"}
    return [_without_descriptions(item) for item in node] if isinstance(node, list) else node


@pytest.mark.parametrize("delivery", DELIVERIES.values(), ids=DELIVERIES.keys())
def test_pipeline_of_many_trainings_fits_into_a_workflow(tmp_path, delivery):
    """Argo keeps about eleven copies of each task's container in a Workflow, which is limited to 1 MiB."""
    delivered = steps(delivery)

    @dsl.component
    def notify(status: dsl.PipelineTaskFinalStatus):
        print(status.state)

    @dsl.pipeline(name="many-trainings")
    def many_trainings(bound: float = 0.9):
        with dsl.ExitHandler(notify()):
            fingerprint = delivered.fingerprint_source(source="s3://data/rows.csv")
            data = delivered.prepare_data(source="s3://data/rows.csv", source_fingerprint=fingerprint.output)

            def fit(distribution):
                return delivered.train(
                    train_dataset=data.outputs["train_dataset"],
                    validation_dataset=data.outputs["validation_dataset"],
                    train_specification={"trainer": "keras_classifier"},
                    distribution_specification=distribution,
                )

            fitted = [fit({"distribution_type": "TF", "number_of_workers": number + 1}) for number in range(20)]
            with dsl.ParallelFor([{"number_of_workers": number + 1} for number in range(10)]) as distribution:
                fit(distribution)
            scored = delivered.evaluate(
                model=fitted[0].outputs["model"], dataset=data.outputs["test_dataset"], bound=bound
            )
            with dsl.If(scored.outputs["is_good_enough"] == True):  # noqa: E712
                delivered.export_model(model=fitted[0].outputs["model"], model_name="digits", bucket="models")

    compiler.Compiler().compile(many_trainings, str(tmp_path / "many.yaml"))
    spec = yaml.safe_load((tmp_path / "many.yaml").read_text(encoding="utf-8"))
    # One for each task, because kfp does not share executors.
    assert len(spec["deploymentSpec"]["executors"]) == 26
    assert 11 * len(json.dumps(spec["deploymentSpec"])) < 2**20


@pytest.mark.parametrize("name", NAMES)
def test_no_default_has_a_placeholder(fresh, name):
    """The backend does not replace placeholders in defaults."""
    spec = yaml.safe_load((fresh / f"{name}.yaml").read_text(encoding="utf-8"))
    inputs = [part.get("inputDefinitions", {}) for part in (*spec["components"].values(), spec["root"])]
    assert "{{" not in json.dumps(inputs)


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


def test_pipeline_loads_as_a_component():
    pipeline = components.load_component_from_file(str(SPECS / "train_and_export.yaml"))
    assert {"metric", "bound"} <= set(pipeline.component_spec.inputs)


@pytest.mark.parametrize("kind", DELIVERIES)
def test_each_step_has_its_delivery_and_the_hash_of_the_library(tmp_path, kind):
    delivery = DELIVERIES[kind]
    write_specs(tmp_path, delivery)
    for step, container in executors(tmp_path / "train_and_export.yaml").items():
        image = delivery.evaluate_image if step == "evaluate" else delivery.steps_image
        assert container["image"] == (image or "python:3.11")
        # Argo and KFP replace text in double braces.
        assert "{{" not in "".join(container["command"])
        # With the hash in the command, changed code invalidates KFP's cache.
        assert container["command"][-1].startswith(bootstrap())
        assert bool(installed_packages(container)) == (kind != "image")
        assert ("'kfp==" in container["command"][-1]) == (kind != "image")
        assert (DELIVERIES["package"].requirement in container["command"][2]) == (kind == "package")


def test_backend_of_kfp_2_0_accepts_every_field():
    """KFP 2.0.0 parses pipelines with kfp-pipeline-spec 0.2.2, which rejects unknown fields."""
    python = environment("kfp-2.0")
    read = (
        "import sys, yaml\n"
        "from google.protobuf import json_format\n"
        "from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec\n"
        "for name in sys.argv[1:]:\n"
        "    json_format.ParseDict(yaml.safe_load(open(name)), PipelineSpec())\n"
        "    print(name)\n"
    )
    files = [str(SPECS / f"{name}.yaml") for name in NAMES]
    process = subprocess.run([python, "-c", read, *files], capture_output=True, text=True, check=False)
    assert process.stdout.split() == files, process.stderr
