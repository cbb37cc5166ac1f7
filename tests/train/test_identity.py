"""The identity of a training for each form of URI that Kubeflow Pipelines creates."""

import re
from http import HTTPStatus
from itertools import combinations

import pytest
from kubernetes_api import KubernetesApi

from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.train.describe.task_path import TaskPath
from kfp_distributed.components.train.run import identity as identity_module
from kfp_distributed.components.train.run.identity import (
    identify_training,
    own_node_name,
    own_task_path,
    read_node_name,
    record_success,
)
from kfp_distributed.components.train.run.training_request.request import job_name
from kfp_distributed.components.train.tell.log_format import log
from kfp_distributed.storage.kubeflow.task_folder import TaskFolder, parse_task_folder, pipeline_root

RUN_A = "4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"
RUN_B = "c1d2e3f4-0000-4111-8222-333344445555"
SALT_1 = "11111111-aaaa-4bbb-8ccc-dddddddddddd"
SALT_2 = "22222222-aaaa-4bbb-8ccc-dddddddddddd"
ROOT = "minio://mlpipeline/v2/artifacts"


def uri(pipeline="digits", run=RUN_A, task="train", salt=SALT_1):
    """Return the URI of a model on a backend since KFP 2.4; salt="" gives the URI of earlier backends."""
    return "/".join(part for part in (ROOT, pipeline, run, task, salt, "model") if part)


def node(iteration=None, attempt=0, workflow="digits-h9hh4", task="train", ancestors=0):
    """Return the name that Argo gives to the node of a step."""
    loop = f".for-loop-2(0).iteration-iterations({iteration}:{iteration})(0).iteration-item(0)"
    loop = "" if iteration is None else loop
    return f"{workflow}({ancestors}).root({ancestors}){loop}.{task}(0).executor({attempt})"


def no_pod():
    raise AssertionError("the pod was read")


def identity(model_uri, node_name=""):
    return identify_training(model_uri, {}, log, (lambda: node_name) if node_name else no_pod)


def name(training):
    return job_name(training.task_name, (training.run_id, *training.distinction))


FOLDERS = {
    "since KFP 2.4": (uri(), TaskFolder(uri()[: -len("/model")], RUN_A, "train", is_unique=True, is_local=False)),
    "before KFP 2.4": (
        uri(salt=""),
        TaskFolder(uri(salt="")[: -len("/model")], RUN_A, "train", is_unique=False, is_local=False),
    ),
    "a root with store settings": (
        f"s3://bucket/{RUN_B}/p/{RUN_A}/train/{SALT_1}/model?region=eu-1&endpoint=http://h/a/b",
        TaskFolder(f"s3://bucket/{RUN_B}/p/{RUN_A}/train/{SALT_1}", RUN_A, "train", is_unique=True, is_local=False),
    ),
    "a task name with slashes": (
        uri(task="fit / 2", salt=""),
        TaskFolder(f"{ROOT}/digits/{RUN_A}/fit / 2", RUN_A, "fit / 2", is_unique=False, is_local=False),
    ),
    "a mounted root": (
        f"/mnt/{RUN_A}/train/{SALT_1}/model",
        TaskFolder(f"/mnt/{RUN_A}/train/{SALT_1}", RUN_A, "train", is_unique=True, is_local=False),
    ),
    "kfp.local": (
        f"/home/{RUN_B}/artifacts/digits-2026-11-23-05-27-00-123456/train/model",
        TaskFolder(
            f"/home/{RUN_B}/artifacts/digits-2026-11-23-05-27-00-123456/train",
            "digits-2026-11-23-05-27-00-123456",
            "train",
            is_unique=False,
            is_local=True,
        ),
    ),
}


@pytest.mark.parametrize(("output_uri", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_the_task_folder_is_parsed_from_an_output_uri(output_uri, folder):
    assert parse_task_folder(output_uri) == folder


@pytest.mark.parametrize(
    ("output_uri", "root"),
    [
        (uri(), ROOT),
        (uri(salt=""), ROOT),
        (f"s3://bucket/{RUN_B}/p/{RUN_A}/train/{SALT_1}/model?region=eu-1", f"s3://bucket/{RUN_B}?region=eu-1"),
        (f"s3://bucket/p/{RUN_A}/train/{SALT_1}/model", "s3://bucket"),
        (f"/mnt/p/{RUN_A}/train/{SALT_1}/model", "/mnt"),
        ("/home/artifacts/digits-2026-11-23/train/model", "/home/artifacts"),
        ("s3://bucket/model", ""),
        (f"s3://bucket/{RUN_A}/train/{SALT_1}/model", ""),
    ],
)
def test_the_pipeline_root_of_an_output(output_uri, root):
    assert pipeline_root(output_uri) == root


@pytest.mark.parametrize("output_uri", ["", "model", "s3://bucket/model", f"s3://bucket/train/{SALT_1}/model"])
def test_an_output_without_a_run_is_refused(output_uri):
    with pytest.raises(ValueError, match=r"run ID.*PIPELINE/RUN/TASK/UUID/OUTPUT"):
        parse_task_folder(output_uri)


DIFFERENT = {
    "a training": (uri(), ""),
    "another task": (uri(task="train-2", salt=SALT_2), ""),
    "another run": (uri(run=RUN_B, salt="33333333-aaaa-4bbb-8ccc-dddddddddddd"), ""),
    "another iteration": (uri(salt=SALT_2), ""),
    "another pipeline": (uri(pipeline="other"), ""),
    "an old backend": (uri(salt=""), node()),
    "an old backend: another task": (uri(task="train-2", salt=""), node(task="train-2")),
    "an old backend: the same task of a nested pipeline": (uri(salt=""), node(task="inner(0).train")),
    "an old backend: another run": (uri(run=RUN_B, salt=""), node(workflow="digits-k7xx2")),
    "an old backend: iteration 1": (uri(salt=""), node(1)),
    "an old backend: iteration 2": (uri(salt=""), node(2)),
    "an old backend: another pipeline": (uri(pipeline="other", salt=""), node()),
}


@pytest.mark.parametrize(("one", "other"), list(combinations(DIFFERENT, 2)))
def test_different_tasks_are_different_trainings(one, other):
    first, second = identity(*DIFFERENT[one]), identity(*DIFFERENT[other])
    assert first != second
    assert name(first) != name(second)


EQUAL = {
    "the executor is retried": (uri(), "", uri(), ""),
    "an old backend: the executor is retried": (uri(salt=""), node(1), uri(salt=""), node(1, attempt=3)),
    "an old backend: the Workflow is retried": (uri(salt=""), node(1), uri(salt=""), node(1, ancestors=1)),
}


@pytest.mark.parametrize(("first", "node_1", "second", "node_2"), EQUAL.values(), ids=EQUAL)
def test_all_attempts_of_a_task_are_the_same_training(first, node_1, second, node_2):
    assert identity(first, node_1) == identity(second, node_2)


def test_the_identity_has_run_id_and_task_name():
    training = identity(uri(task="train-2"))
    assert (training.run_id, training.task_name) == (RUN_A, "train-2")
    assert re.fullmatch("train-2-[0-9a-f]{12}", name(training))


@pytest.fixture
def task_folder(tmp_path):
    folder = tmp_path / "digits-2026-11-23-05-27-00-123456" / "train"
    folder.mkdir(parents=True)
    return folder


def test_tasks_of_kfp_local_with_other_inputs_are_other_trainings(task_folder):
    model_uri, inputs = str(task_folder / "model"), {"train_parameters": {"epochs": 2}, "manifests": ["data", ""]}
    first = identify_training(model_uri, inputs, log, no_pod)
    assert (first.run_id, first.task_name) == ("digits-2026-11-23-05-27-00-123456", "train")
    others = [
        identify_training(model_uri, {**inputs, "train_parameters": {"epochs": 3}}, log, no_pod),
        identify_training(model_uri, {**inputs, "manifests": ["other data", ""]}, log, no_pod),
        identify_training(model_uri.replace("05-27", "05-28"), inputs, log, no_pod),
    ]
    assert len({first, *others}) == 4


def test_a_task_of_kfp_local_is_the_same_training_until_it_succeeds(task_folder):
    model_uri, inputs = str(task_folder / "model"), {"train_parameters": {"epochs": 2}}
    identities = []
    for _ in range(3):
        first_attempt, second_attempt = (identify_training(model_uri, inputs, log, no_pod) for _ in range(2))
        assert first_attempt == second_attempt
        identities.append(first_attempt)
        record_success(model_uri, inputs)
    assert len(set(identities)) == 3
    assert [path.name for path in task_folder.iterdir()] == ["finished-trainings"]


def test_the_node_name_is_read_from_the_annotation_of_the_pod():
    with KubernetesApi() as server:
        annotations = {"workflows.argoproj.io/node-name": node(1)}
        server.put("pods/a-pod", {"metadata": {"name": "a-pod", "annotations": annotations}})
        assert read_node_name(server.connect(), "a-pod") == node(1)
        assert server.requests == ["GET pods/a-pod"]


def test_a_pod_that_cannot_be_read_or_has_no_annotation_is_an_error():
    with KubernetesApi() as server:
        server.put("pods/a-pod", {"metadata": {"name": "a-pod"}})
        with pytest.raises(ValueError, match=r"default/a-pod .*workflows\.argoproj\.io/node-name"):
            read_node_name(server.connect(), "a-pod")
        server.refuses = HTTPStatus.FORBIDDEN
        with pytest.raises(ValueError, match=r"KFP 2\.4 .*run kfp-distributed install --namespace default"):
            read_node_name(server.connect(), "a-pod")


def test_the_step_reads_its_task_path_if_it_may(monkeypatch):
    monkeypatch.setenv("KFP_POD_NAME", "a-pod")
    with KubernetesApi() as server:
        monkeypatch.setattr(identity_module, "connect", server.connect)
        assert own_task_path(log) == TaskPath()  # The pod was deleted.
        annotations = {"workflows.argoproj.io/node-name": node(1, task="tune(0).train")}
        server.put("pods/a-pod", {"metadata": {"name": "a-pod", "annotations": annotations}})
        assert own_task_path(log) == TaskPath(("tune",), (1,))
        server.refuses = HTTPStatus.FORBIDDEN
        assert own_task_path(log) == TaskPath()
        server.refuses = HTTPStatus.NOT_ACCEPTABLE
        with pytest.raises(ClusterError):
            own_task_path(log)
    monkeypatch.delenv("KFP_POD_NAME")
    assert own_task_path(log) == TaskPath()


def test_a_missing_pod_name_is_an_error_where_the_pod_must_be_read(monkeypatch):
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    with pytest.raises(ValueError, match=r"^KFP_POD_NAME .*KFP 2\.4 "):
        own_node_name()
