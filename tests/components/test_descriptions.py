"""The compiled YAML has a description of each input and output, which the KFP UI shows."""

import re

import pytest
import yaml

from kfp_distributed.pipelines.specs import write_specs

pytestmark = pytest.mark.takes(14)

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
STEPS = {
    "comp-prepare-data",
    "comp-train",
    "comp-evaluate",
    "comp-export-model",
    "comp-export-if-good-enough",
    "comp-deploy-if-good-enough",
    "comp-serve-if-good-enough",
    "comp-fingerprint-source",
    "comp-import-model",
    "comp-evaluate-language-model",
    "comp-tune",
}


@pytest.fixture(scope="module", params=[False, True], ids=["without task_config", "with task_config"])
def folder(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("specs")
    write_specs(folder, task_config=request.param)
    return folder


@pytest.fixture(params=NAMES)
def interface(folder, request):
    """Fields of each input and output of the pipeline and of each component with a docstring.

    The keys are (component, "inputDefinitions" or "outputDefinitions", name). Descriptions are on one line.
    """
    spec = yaml.safe_load((folder / f"{request.param}.yaml").read_text(encoding="utf-8"))
    components = {"root": spec["root"], **{name: spec["components"].get(name, {}) for name in STEPS}}
    return {
        (component, kind, name): {**fields, "description": " ".join(fields.get("description", "").split())}
        for component, definition in components.items()
        for kind in ("inputDefinitions", "outputDefinitions")
        for group in definition.get(kind, {}).values()
        for name, fields in group.items()
    }


def test_each_input_and_output_has_a_description(interface):
    assert len(interface) > 3
    assert [key for key, fields in interface.items() if len(fields["description"]) < 12] == []


def test_each_input_of_the_pipeline_has_a_default(folder):
    spec = yaml.safe_load((folder / "train_and_export.yaml").read_text(encoding="utf-8"))
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    assert [name for name, fields in parameters.items() if "defaultValue" not in fields] == []


def test_each_string_dict_and_list_input_has_an_example_or_the_allowed_values(interface):
    assert [
        (component, name)
        for (component, kind, name), fields in interface.items()
        if kind == "inputDefinitions"
        and fields.get("parameterType") in ("STRING", "STRUCT", "LIST")
        and not re.search("Examples?: |Allowed values: ", fields["description"])
    ] == []


def test_each_optional_input_describes_its_default(interface):
    assert [
        (component, name)
        for (component, _, name), fields in interface.items()
        if {"defaultValue", "isOptional"} & {*fields}
        and fields.get("parameterType") != "TASK_CONFIG"
        and "Default: " not in fields["description"]
    ] == []
