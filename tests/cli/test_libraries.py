"""The libraries that compiled pipelines need, and what doctor says of them."""

import pytest
import yaml
from click.testing import CliRunner
from kfp import compiler

from kfp_distributed.cli.cluster_checks.checks import Check, Question, Refusal
from kfp_distributed.cli.cluster_checks.library_checks import judge_libraries
from kfp_distributed.cli.main import main
from kfp_distributed.cli.setup.libraries import StepLibrary, read_pipeline, read_step_libraries
from kfp_distributed.components import Delivery, steps
from kfp_distributed.library.archive import library_config_map, library_name
from kfp_distributed.library.content import content_hash, read_library

HASH = content_hash(read_library())
NAME = library_name(HASH)
URL = "https://bob:secret@files.example.com/kfp_distributed-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("delivery", "needs"),
    [
        (Delivery.namespace(), {}),
        (Delivery.image("reg.example.com/steps:1"), {"image": "reg.example.com/steps:1"}),
        (Delivery.package("kfp-distributed==0.1.0"), {"requirement": "kfp-distributed==0.1.0"}),
        (Delivery(requirement=URL), {"requirement": URL.replace("bob:secret", "***")}),
    ],
)
def test_the_library_of_a_compiled_step(tmp_path, delivery, needs):
    file = tmp_path / "step.yaml"
    compiler.Compiler().compile(steps(delivery).export_model, str(file))
    assert read_step_libraries(read_pipeline(file.read_text())) == [StepLibrary("export-model", NAME, HASH, **needs)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not YAML: while parsing a flow node"),
        ("just text", "is not a compiled pipeline: it has no deploymentSpec"),
        ("", "is not a compiled pipeline: it has no deploymentSpec"),
        ("apiVersion: v1\nkind: Pod\n", "is not a compiled pipeline: it has no deploymentSpec"),
        ("deploymentSpec: 5\n", "has no step of kfp-distributed that names its library"),
        ("deploymentSpec: {executors: {exec-a: 5}}\n", "has no step of kfp-distributed that names its library"),
        (
            yaml.safe_dump(
                {"deploymentSpec": {"executors": {"exec-a": {"container": {"command": ["sh", "-c", "x"]}}}}}
            ),
            "has no step of kfp-distributed that names its library; compile it anew with the installed version",
        ),
    ],
)
def test_a_file_that_is_not_a_pipeline_of_this_library_is_refused(text, error):
    with pytest.raises(ValueError, match=f"^{error}") as raised:
        read_step_libraries(read_pipeline(text))
    assert "\n" not in str(raised.value)


def judged(*libraries, config_map=..., installed=NAME, account="pipeline-runner"):
    config_map = library_config_map("team") if config_map is ... else config_map
    question = Question("team", "", account=account, libraries=libraries)
    return judge_libraries(question, {library.name: config_map for library in libraries}, installed)


TRAIN, EVALUATE = (StepLibrary(step, NAME, HASH) for step in ("train", "evaluate"))
INSTALL = "kfp-distributed install --namespace team"


def test_an_installed_library_is_ok():
    text = f"ConfigMap team/{NAME} has the library of train, evaluate"
    assert judged(TRAIN, EVALUATE) == [Check("library", "ok", text)]


def test_images_and_packages_need_no_config_map():
    image, package = TRAIN._replace(image="steps:1"), EVALUATE._replace(requirement="kfp-distributed")
    assert judged(image, package, config_map=None) == [
        Check("library", "ok", f"image steps:1 of train must contain {NAME}; this is not checked"),
        Check("library", "ok", f"pip installs kfp-distributed for evaluate, which must be {NAME}; this is not checked"),
    ]


OLD = "kfp-distributed-0.0.9-" + NAME[-12:]
CHANGED = NAME[:-12] + "0" * 12


@pytest.mark.parametrize(
    ("library", "account", "fix"),
    [
        (NAME, "pipeline-runner", INSTALL),
        (NAME, "", INSTALL),
        (NAME, "default-editor", f"{INSTALL} --service-account default-editor"),
        (OLD, "", f"in a checkout of version 0.0.9: pip install . && {INSTALL}"),
        (
            CHANGED,
            "",
            f"this command line has {NAME}: compile the pipeline again with it and run {INSTALL}, or run the latter "
            "from the sources that compiled the pipeline",
        ),
    ],
)
def test_a_missing_library_fails_and_the_fix_installs_it(library, account, fix):
    text = f"there is no ConfigMap team/{library} with the library of train"
    missing = judged(TRAIN._replace(name=library), config_map=None, account=account)
    assert missing == [Check("library", "failed", text, fix)]


def test_a_library_with_a_fault_fails():
    text = f"ConfigMap team/{NAME} does not serve train: it has no library.zip"
    assert judged(TRAIN, config_map={"data": {}}) == [Check("library", "failed", text, INSTALL)]


def test_a_library_that_cannot_be_read_is_a_warning():
    assert judged(TRAIN, config_map=Refusal("ann may not get configmaps")) == [
        Check(
            "library",
            "warning",
            f"cannot read ConfigMap team/{NAME}: ann may not get configmaps",
            f"ask somebody who may: kubectl get configmap {NAME} --namespace team",
        )
    ]


@pytest.mark.takes(4)
def test_the_image_of_evaluate_adds_to_the_environment(tmp_path, monkeypatch):
    arguments = ["compile", str(tmp_path), "--evaluate-image", "evaluate:1"]
    monkeypatch.setenv("KFP_DISTRIBUTED_PACKAGE", "name==1")
    assert CliRunner().invoke(main, arguments).exit_code == 2
    monkeypatch.delenv("KFP_DISTRIBUTED_PACKAGE")
    monkeypatch.setenv("KFP_DISTRIBUTED_IMAGE", "steps:1")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    libraries = read_step_libraries(read_pipeline((tmp_path / "train_and_export.yaml").read_text()))
    images = dict.fromkeys(["prepare-data", "train", "export-model", "fingerprint-source"], "steps:1")
    assert {library.step: library.image for library in libraries} == {**images, "evaluate": "evaluate:1"}
