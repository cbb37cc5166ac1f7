"""Fixtures for tests on the cluster of KUBECONFIG: namespaces, the object store, images and train steps."""

import base64
import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cluster.jobs import start_step
from cluster.step_pods import StepContainer
from kubernetes import client, config, watch

from kfp_distributed.components import Delivery, prepare_data
from kfp_distributed.components.kfp_interface.delivery import IMAGE_VARIABLE
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.trainers.programs.requirements import variable_of

ADDITIONS = {
    "trainer": ("trainer.kubeflow.org", "Kubeflow Trainer 2.3"),
    "kserve": ("serving.kserve.io", "KServe 0.17"),
}
"""API group and name of what a cluster may lack, by the mark of the tests that need it."""


@pytest.hookimpl(trylast=True)  # After -m, because tests that it deselects need no cluster.
def pytest_collection_modifyitems(config, items):
    """Deselect tests of versions of MPIJob that the cluster does not serve. It serves one of two versions, or none.

    Skip tests of TrainJob on a cluster without Kubeflow Trainer, and of InferenceService on one without KServe.
    """
    # The mark of a test has precedence over that of its module.
    versions_by_item = {item: mark.args for item in items if (mark := item.get_closest_marker("mpi"))}
    served = served_mpi_versions() if versions_by_item else set()
    deselected = [
        item for item, versions in versions_by_item.items() if not served.intersection(versions or ("v1", "v2beta1"))
    ]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
    for name, (group, product) in ADDITIONS.items():
        needing = [item for item in items if item.get_closest_marker(name)]
        if needing and not serves(group):
            for item in needing:
                item.add_marker(pytest.mark.skip(reason=f"the cluster does not serve {group}: install {product}"))


def serves(name: str) -> bool:
    config.load_config()
    return name in {group.name for group in client.ApisApi().get_api_versions().groups}


def served_mpi_versions() -> set[str]:
    try:
        config.load_config()
    except config.ConfigException as error:
        raise pytest.UsageError(f"no cluster to test on: {error} Set one: KUBECONFIG=... make test-cluster") from None
    groups, objects = client.ApisApi().get_api_versions().groups, client.CustomObjectsApi()
    versions = [version.version for group in groups if group.name == "kubeflow.org" for version in group.versions]
    resources = {version: objects.get_api_resources("kubeflow.org", version).resources for version in versions}
    return {version for version, served in resources.items() if "mpijobs" in {resource.name for resource in served}}


@pytest.fixture(scope="session")
def api():
    config.load_config()
    return client.CoreV1Api()


@pytest.fixture(scope="session")
def object_store_secret(api):
    """Access and secret key of the object store of Kubeflow Pipelines in namespace kubeflow."""
    data = api.read_namespaced_secret("mlpipeline-minio-artifact", "kubeflow").data
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


@pytest.fixture
def namespace(api):
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    api.create_namespace({"metadata": {"name": name}})
    # Pods are refused until the namespace has its default service account.
    accounts = watch.Watch()
    for event in accounts.stream(api.list_namespaced_service_account, name, timeout_seconds=60):
        if event["object"].metadata.name == "default":
            accounts.stop()
    yield name
    api.delete_namespace(name)


@pytest.fixture(scope="session")
def store_endpoint():
    """URL of the object store for this machine."""
    return os.environ.get("S3_ENDPOINT", "http://minio-service.kubeflow:9000")


@pytest.fixture(scope="session")
def store_environment(object_store_secret, store_endpoint):
    """Environment variables with which this machine uses the cluster's object store."""
    return {
        "AWS_ENDPOINT_URL": store_endpoint,
        "AWS_ACCESS_KEY_ID": object_store_secret["accesskey"],
        "AWS_SECRET_ACCESS_KEY": object_store_secret["secretkey"],
    }


@pytest.fixture(scope="session")
def image_name():
    """A function that returns the image of a folder of images/, which `make images` has put on the cluster."""

    def find(name):
        command = ["make", "--silent", "image-name", f"IMAGE={name}", "PREFIX=localhost/kfp-distributed"]
        configured = os.environ.get(variable_of(name, "IMAGE"))
        root = Path(__file__).parents[2]
        options = {"cwd": root, "check": True, "capture_output": True, "text": True}
        return configured or subprocess.run(command, **options).stdout.strip()

    return find


@pytest.fixture(scope="session")
def trainer_image(image_name):
    """Image with TensorFlow."""
    return image_name("tensorflow")


@pytest.fixture
def open_namespace(api, namespace, object_store_secret):
    """The namespace of one test, with the object store's Secret. It accepts all pods, also those of operators."""
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": object_store_secret}
    api.create_namespaced_secret(namespace, secret)
    return namespace


@pytest.fixture(scope="session")
def training_namespace(api, object_store_secret):
    """A namespace that enforces the "restricted" Pod Security Standard, with the object store's Secret."""
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create_namespace({"metadata": {"name": name, "labels": labels}})
    secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": object_store_secret}
    api.create_namespaced_secret(name, secret)
    yield name
    api.delete_namespace(name)


@pytest.fixture(scope="module")
def restricted(api):
    """A namespace that enforces the Pod Security Standard "restricted", and warns about jobs that violate it.

    A PriorityClass of the cluster has the same name.
    """
    name = f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    standard = "pod-security.kubernetes.io"
    labels = {f"{standard}/enforce": "restricted", f"{standard}/warn": "restricted"}
    api.create_namespace({"metadata": {"name": name, "labels": labels}})
    classes = client.SchedulingV1Api()
    classes.create_priority_class({"metadata": {"name": name}, "value": 1})
    # Pods are refused until the namespace has their service account.
    api.create_namespaced_service_account(name, {"metadata": {"name": "tests"}})
    yield name
    classes.delete_priority_class(name)
    api.delete_namespace(name)


@pytest.fixture(scope="session")
def bucket(store_environment, training_namespace):
    """A bucket with the digits dataset: s3://BUCKET/train_dataset, validation_dataset and test_dataset."""
    store = open_store(f"s3://{training_namespace}", credentials_from_environment(store_environment))
    store.make_bucket()
    with tempfile.TemporaryDirectory() as scratch:
        splits = ("train_dataset", "validation_dataset", "test_dataset")
        artifacts = {
            name: SimpleNamespace(path=f"{scratch}/{name}", uri=f"{scratch}/{name}", metadata={})
            for name in (*splits, "overview")
        }
        prepare_data.python_func(**artifacts, source="digits")
        for split in splits:
            store.upload_folder(f"{scratch}/{split}", split)
    yield training_namespace
    store.delete([entry.key for entry in store.list()])


@pytest.fixture
def configure_account(api, tmp_path, monkeypatch):
    """A function that sets KUBECONFIG to a service account of a namespace; it returns the file and its content."""

    def configure(namespace, account):
        token = api.create_namespaced_service_account_token(account, namespace, {"spec": {}}).status.token
        settings = client.Configuration.get_default_copy()
        cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
        context = {"cluster": "it", "user": account, "namespace": namespace}
        content = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": context}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": account, "user": {"token": token}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(content))
        monkeypatch.setenv("KUBECONFIG", str(file))
        # The client has read KUBECONFIG when it was imported.
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        return file, content

    return configure


@pytest.fixture
def operator(request):
    """What runs the TF, PyTorch and MPI jobs of a test. The mark `both_operators` runs a test with each."""
    return getattr(request, "param", "training-operator")


_PAUSES = Path(__file__).parent / "programs" / "usercustomize.py"
_FOLDER_OF_PAUSES = "/tests"


def pausing(api, namespace: str, seconds: float) -> dict:
    """Return settings of a task whose replicas pause after each step for a number of seconds. See the program."""
    config_map = {"metadata": {"name": "pauses"}, "data": {_PAUSES.name: _PAUSES.read_text()}}
    with suppress(client.ApiException):  # It exists if the namespace is that of several tests.
        api.create_namespaced_config_map(namespace, config_map)
    # The folder in which each Python of the images looks for modules of its user.
    items = [
        {"key": _PAUSES.name, "path": f"lib/python3.{minor}/site-packages/{_PAUSES.name}"} for minor in range(10, 14)
    ]
    return {
        "env": [
            {"name": "PYTHONUSERBASE", "value": _FOLDER_OF_PAUSES},
            {"name": "TESTS_PAUSE", "value": str(seconds)},
            # Ranks of Horovod ask each other every millisecond by default, also while they pause.
            {"name": "HOROVOD_CYCLE_TIME", "value": "50"},
        ],
        "volumes": [{"name": "pauses", "configMap": {"name": "pauses", "items": items}}],
        "volume_mounts": [{"name": "pauses", "mountPath": _FOLDER_OF_PAUSES}],
    }


@pytest.fixture
def start(api, training_namespace, bucket, store_environment, trainer_image, operator):
    """A function that starts a train step on the digits. Running steps are cancelled at the end of the test."""
    steps = []

    def start_one(specification, distribution=None, parameters=None, pause=0.0, **request):
        if pause:
            request["task_config"] = pausing(api, request.get("namespace", training_namespace), pause)
        if isinstance(specification, dict):
            specification = {"image": trainer_image, **specification}
        number = uuid.uuid4().hex[:8]
        distribution = {**(distribution or {})}
        if distribution.get("distribution_type", "Job") != "Job":
            distribution.setdefault("operator", operator)
        defaults = {
            "train_uri": f"s3://{bucket}/train_dataset",
            "validation_uri": f"s3://{bucket}/validation_dataset",
            "model_uri": f"s3://{bucket}/models/{number}/model",
            "checkpoint_uri": f"s3://{bucket}/checkpoints",
            "identity": [f"run-{number}", "train", "1"],
        }
        steps.append(
            start_step(
                request.pop("namespace", training_namespace),
                {**store_environment, **request.pop("environment", {})},
                train_specification=specification,
                train_parameters=parameters or {},
                distribution_specification=distribution or {},
                **{**defaults, **request},
            )
        )
        return steps[-1]

    yield start_one
    for step in steps:
        step.process.terminate()
    for step in steps:
        step.end()


@pytest.fixture(scope="session")  # The scope of the namespace, with which the account is deleted.
def pipeline_runner(api, training_namespace):
    """A service account with only the permissions of deploy/rbac.yaml."""
    api.create_namespaced_service_account(training_namespace, {"metadata": {"name": "pipeline-runner"}})
    rbac = client.RbacAuthorizationV1Api()
    role, binding = yaml.safe_load_all((Path(__file__).parents[2] / "deploy" / "rbac.yaml").read_text())
    binding["subjects"][0]["namespace"] = training_namespace
    rbac.create_namespaced_role(training_namespace, role)
    rbac.create_namespaced_role_binding(training_namespace, binding)
    return "pipeline-runner"


@pytest.fixture(scope="module")
def image_specs(tmp_path_factory, image_name):
    """Folder with the YAML of the steps, compiled for image delivery."""
    folder = tmp_path_factory.mktemp("image")
    write_specs(folder, Delivery.image(os.environ.get(IMAGE_VARIABLE) or image_name("steps"), image_name("evaluate")))
    return folder


@pytest.fixture
def run_in_pod(api, training_namespace, pipeline_runner):
    """A function that starts a pod that runs steps in sequence or in parallel, and returns the pod."""

    def run(
        name: str,
        steps: Sequence[StepContainer],
        *,
        in_parallel: bool = False,
        annotations: dict[str, str] | None = None,
        service_account: str = pipeline_runner,
    ):
        containers = [step.spec() for step in steps]
        spec = {
            "serviceAccountName": service_account,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [] if in_parallel else containers[:-1],
            "containers": containers if in_parallel else containers[-1:],
            "volumes": [{"name": "work", "emptyDir": {}}],
        }
        metadata = {"name": name, "annotations": annotations or {}}
        return api.create_namespaced_pod(training_namespace, {"metadata": metadata, "spec": spec})

    return run
