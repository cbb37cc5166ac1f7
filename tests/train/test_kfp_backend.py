"""What the steps rely on in the KFP backend: the forms of KFP 2.15 to the newest, and what happens without each."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from http import HTTPStatus
from pathlib import Path

import pytest
from kfp import dsl
from kubernetes_api import KubernetesApi
from step_lines import brief_lines

from kfp_distributed.components.train.describe.manifests.cluster_settings import TaskSettings, read_task_settings
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.run import identity as identity_module
from kfp_distributed.components.train.run.identity import (
    TrainingIdentity,
    identify_training,
    own_task_path,
    record_success,
)
from kfp_distributed.components.train.run.runners import runner_choice
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.components.train.tell.records import Records
from kfp_distributed.deploy import __file__ as deploy_file
from kfp_distributed.storage.kubeflow import kfp_backend
from kfp_distributed.storage.kubeflow.kfp_backend import (
    NODE_NAME_ANNOTATION,
    POD_NAME_VARIABLE,
    POD_UID_VARIABLE,
    RELIANCES,
    RUN_ID_LABEL,
    TASK_CONFIG_FIELDS,
)
from kfp_distributed.storage.kubeflow.task_folder import parse_task_folder

RUN = "4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
SALT = "11111111-aaaa-4bbb-8ccc-dddddddddddd"
URI = f"minio://mlpipeline/private-artifacts/team/v2/artifacts/digits/{RUN}/train/{SALT}/model"
WITHOUT_RUN = "minio://mlpipeline/v3/artifacts/digits/run-7/train/model"
NODES = "digits-h9hh4(0).root(0).for-loop-2(0).iteration-iterations(1:1)(0).iteration-item(0).train(0).executor({})"
NODE = NODES.format(0)

DRIVER_TASK_CONFIG = {
    "affinity": None,
    "tolerations": None,
    "nodeSelector": None,
    "env": None,
    "volumes": None,
    "volumeMounts": None,
    "resources": {},
}
"""TaskConfig of a task without settings, as the driver of KFP 2.15 and of the newest KFP writes it."""


@pytest.fixture
def server(monkeypatch):
    """An API server, on which the step's pod is `a-pod`."""
    monkeypatch.setenv(POD_NAME_VARIABLE, "a-pod")
    monkeypatch.setenv(POD_UID_VARIABLE, "1234")
    with KubernetesApi() as api:
        monkeypatch.setattr(identity_module, "connect", api.connect)
        yield api


def put_pod(server, node_name=NODE, run_id=RUN):
    annotations = {NODE_NAME_ANNOTATION: node_name} if node_name else {}
    labels = {RUN_ID_LABEL: run_id} if run_id else {}
    server.put("pods/a-pod", {"metadata": {"name": "a-pod", "annotations": annotations, "labels": labels}})


class TestOutputUri:
    def test_of_a_profile_is_parsed(self):
        folder = parse_task_folder(URI)
        assert (folder.run_id, folder.task_name, folder.is_unique) == (RUN, "train", True)

    def test_without_a_run_id_is_replaced_by_the_pod(self, server, capsys):
        put_pod(server)
        expected = TrainingIdentity(RUN, "train", (NODE.replace("(0)", ""),))
        assert identify_training(WITHOUT_RUN, {}, log) == expected
        (line,) = brief_lines(capsys.readouterr().out)
        assert re.search(
            rf"{WITHOUT_RUN} has no run ID .*{RUN} in the label {RUN_ID_LABEL} of the pod default/a-pod", line
        )
        record_success(WITHOUT_RUN, {})  # The end of the training needs no run ID either.

    def test_without_a_run_id_is_the_same_for_all_attempts(self, server):
        identities = set()
        for attempt in range(3):
            put_pod(server, NODES.format(attempt))
            identities.add(identify_training(f"{WITHOUT_RUN}-{attempt}", {}, log))
        assert len(identities) == 1

    @pytest.mark.parametrize(
        ("pod", "missing"),
        [
            ({"run_id": ""}, f"label {RUN_ID_LABEL}"),
            ({"node_name": ""}, f"annotation {NODE_NAME_ANNOTATION}"),
            ({"node_name": "another-form"}, f"annotation {NODE_NAME_ANNOTATION}"),
        ],
    )
    def test_without_a_run_id_and_without_the_pod_is_an_error(self, server, pod, missing):
        put_pod(server, **pod)
        with pytest.raises(ValueError, match=f"has no run ID: .*/a-pod has no {missing}"):
            identify_training(WITHOUT_RUN, {}, log)

    def test_without_a_run_id_in_a_pod_that_may_not_be_read_is_an_error(self, server):
        server.refuses = HTTPStatus.FORBIDDEN
        with pytest.raises(ValueError, match=r"has no run ID: .* run kfp-distributed install --namespace default"):
            identify_training(WITHOUT_RUN, {}, log)

    def test_without_a_run_id_and_a_pod_name_is_an_error(self, server, monkeypatch):
        monkeypatch.delenv(POD_NAME_VARIABLE)
        with pytest.raises(ValueError, match=f"has no run ID: .* {POD_NAME_VARIABLE} is not set"):
            identify_training(WITHOUT_RUN, {}, log)

    def test_without_a_pipeline_root_is_logged(self):
        lines = []
        records = Records(lambda level, text: lines.append((level, text)))
        records.warn_of_unknown_root(URI)
        assert lines == []
        records.warn_of_unknown_root(WITHOUT_RUN)
        ((level, text),) = lines
        assert level == "WARNING"
        assert f"not listed by `kfp-distributed jobs --ended`: {WITHOUT_RUN} has no known pipeline root" in text


class TestNodeName:
    def test_of_all_versions_is_the_position_of_the_task(self, server, capsys):
        put_pod(server)
        assert own_task_path(log) == TaskPath((), (1,))
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        ("node_name", "text"),
        [
            ("", f"no annotation {NODE_NAME_ANNOTATION}"),
            ("digits-h9hh4-train-12345", f"{NODE_NAME_ANNOTATION} = 'digits-h9hh4-train-12345'"),
            ("digits(0).main(0).tune(0).train(0).executor(0)", f"{NODE_NAME_ANNOTATION} = 'digits"),
        ],
    )
    def test_that_is_missing_or_unknown_is_logged(self, server, capsys, node_name, text):
        put_pod(server, node_name)
        assert own_task_path(log) == TaskPath()
        (line,) = brief_lines(capsys.readouterr().out)
        assert text in line
        assert "the name of the job has no sub-pipelines and iterations" in line

    def test_that_may_not_be_read_is_logged(self, server, capsys):
        server.refuses = HTTPStatus.FORBIDDEN
        assert own_task_path(log) == TaskPath()
        (line,) = brief_lines(capsys.readouterr().out)
        assert re.search("no sub-pipelines and iterations.*run kfp-distributed install --namespace default", line)


class TestStepEnvironment:
    @pytest.fixture(autouse=True)
    def pod(self, server, monkeypatch, tmp_path):
        monkeypatch.setattr(runner_choice, "TOKEN_FILE", tmp_path)

    @pytest.mark.parametrize(
        ("removed", "names"),
        [
            ([], None),
            ([POD_UID_VARIABLE], POD_UID_VARIABLE),
            ([POD_NAME_VARIABLE, POD_UID_VARIABLE], f"{POD_NAME_VARIABLE} and {POD_UID_VARIABLE}"),
        ],
    )
    def test_missing_variables_of_the_pod_are_logged(self, monkeypatch, capsys, removed, names):
        for name in removed:
            monkeypatch.delenv(name)
        runner_choice.warn_of_missing(URI, log)
        lines = brief_lines(capsys.readouterr().out)
        if names is None:
            assert lines == []
            return
        (line,) = lines
        assert f"the KFP backend has not set {names} " in line
        assert "does not delete the job" in line

    def test_a_task_config_of_the_driver_is_accepted(self):
        config = {"node_selector": DRIVER_TASK_CONFIG["nodeSelector"], "resources": DRIVER_TASK_CONFIG["resources"]}
        assert read_task_settings(config) == TaskSettings()

    def test_a_step_that_was_compiled_without_task_config_has_no_settings(self):
        assert read_task_settings(vars(dsl.TaskConfig())) == TaskSettings()  # What kfp passes then.

    def test_nothing_is_logged_of_a_step_that_no_backend_runs(self, monkeypatch, capsys, tmp_path):
        monkeypatch.delenv(POD_NAME_VARIABLE)
        runner_choice.warn_of_missing("/home/me/artifacts/digits/train/model", log)  # A notebook.
        monkeypatch.setattr(runner_choice, "TOKEN_FILE", tmp_path / "none")
        runner_choice.warn_of_missing(URI, log)
        assert capsys.readouterr().out == ""

    def test_the_fields_of_a_task_config_are_those_of_kfp(self):
        assert {field.name for field in fields(dsl.TaskConfig)} == {*TASK_CONFIG_FIELDS}
        assert {field.name for field in fields(TaskSettings)} == {*TASK_CONFIG_FIELDS}


def test_the_role_of_the_steps_has_the_names_of_the_backend():
    role = Path(deploy_file).with_name("rbac.yaml").read_text("utf-8")
    assert f"resourceNames: [{kfp_backend.STORE_SECRET}]" in role
    assert f"resourceNames: [{', '.join(sorted(kfp_backend.STORE_SERVICES))}]" in role
    assert f"name: {kfp_backend.STEP_ACCOUNT}" in role


@pytest.mark.parametrize(("value", "is_runtime"), [("true", True), ("false", False)])
def test_kfp_imports_its_runtime_only_by_the_variable(value, is_runtime):
    check = "import kfp, sys; print('kfp.compiler' not in sys.modules)"
    environment = {**os.environ, kfp_backend.RUNTIME_VARIABLE: value}
    output = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == str(is_runtime)


@pytest.mark.parametrize("name", [kfp_backend.RUNTIME_VARIABLE, kfp_backend.EXECUTOR_MODULE])
def test_the_packaging_of_steps_uses_the_names_of_kfp(name):
    # The packages `library` and `components` cannot import the constant before the library is found.
    root = Path(__file__).parents[2]
    files = ("library/start.py", "components/__init__.py", "components/kfp_interface/packaging.py")
    assert any(f'"{name}"' in (root / file).read_text("utf-8") for file in files)


LITERALS = {
    value
    for name, value in vars(kfp_backend).items()
    if isinstance(value, str)
    and not name.startswith("_")
    and re.fullmatch(r"[\w./:-]{8,}", value)
    and not value.startswith(("kfp_distributed", "/"))
} - {kfp_backend.KFP_NAMESPACE, kfp_backend.RUNTIME_VARIABLE, kfp_backend.EXECUTOR_MODULE}


def test_no_other_module_has_the_names_as_literals():
    root = Path(__file__).parents[2]
    found = {
        f"{source.relative_to(root)}: {literal}"
        for package in ("cli", "components", "storage", "pipelines", "trainers", "cluster_api")
        for source in (root / package).rglob("*.py")
        if source.name != "kfp_backend.py"
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(literal := node.value, str) and literal in LITERALS
    }
    assert found == set()


def test_every_reliance_names_its_source_and_its_test_and_what_happens_without_it():
    assert len({reliance.value for reliance in RELIANCES}) == len(RELIANCES)
    sources = "\n".join(path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    for reliance in RELIANCES:
        assert all(reliance)
        assert f"def {reliance.test}(" in sources, reliance.test
        assert re.search(r"^(backend|frontend|sdk|manifests)/", reliance.source)
