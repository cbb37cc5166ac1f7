"""A stranger replaces the code of a job before its pods start: the pods run nothing of it, and the job fails."""

import base64
import io
import uuid
import zipfile

import pytest
from cluster.test_failures import failed
from cluster.test_launch import function
from kubernetes import client

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MPI = {"distribution_type": "MPI", "number_of_workers": 2}
STRANGER = "print('code of a stranger', flush=True)\n"


@pytest.fixture
def admit(api):
    """Label that no node has, and a function that gives it to all nodes. Pods that select the label wait for it."""
    label = f"kfp-distributed-test-{uuid.uuid4().hex[:8]}"
    nodes = [node.metadata.name for node in api.list_node().items]

    def set_label(value="yes"):
        for node in nodes:
            api.patch_node(node, {"metadata": {"labels": {label: value}}})

    yield label, set_label
    set_label(None)


def replace_code(api, namespace: str, name: str) -> None:
    """Replace the archive of a ConfigMap. The owner and the other data stay."""
    code = api.read_namespaced_config_map(name, namespace)
    assert code.immutable
    archive = io.BytesIO(base64.b64decode(code.binary_data["library.zip"]))
    with zipfile.ZipFile(archive) as library:
        files = {path: library.read(path).decode() for path in library.namelist()}
    with zipfile.ZipFile(archive := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as library:
        for path, text in {**files, "sitecustomize.py": STRANGER}.items():
            library.writestr(path, STRANGER if path.endswith(("entry.py", "launcher.py", "packages.py")) else text)
    code.binary_data["library.zip"] = base64.b64encode(archive.getvalue()).decode()
    code.metadata.resource_version = code.metadata.uid = None
    with pytest.raises(client.ApiException, match="immutable"):
        api.replace_namespaced_config_map(name, namespace, code)
    api.delete_namespaced_config_map(name, namespace)
    api.create_namespaced_config_map(namespace, code)


@pytest.mark.takes(25)
@pytest.mark.parametrize(
    ("distribution", "packages"),
    [({}, []), ({}, ["numpy"]), pytest.param(MPI, [], marks=pytest.mark.mpi("v1"))],
    ids=["Job", "Job with packages", "MPIJob"],
)
def test_pods_refuse_code_that_was_replaced_before_they_started(
    distribution, packages, start, admit, api, open_namespace, image_name
):
    label, set_label = admit
    program = function("print('trains', flush=True)") | {"packages": packages}
    if distribution == MPI:
        program["image"] = image_name("horovod")
    step = start(program, {**distribution, "node_selector": {label: "yes"}}, namespace=open_namespace)
    step.wait_for("Unschedulable")
    replace_code(api, open_namespace, f"{step.name}-code")
    set_label()
    cause = failed(step, "exit code 1", f"ConfigMap {step.name}-code was replaced: SHA-256 ")
    assert "stranger" not in step.log + cause
    assert "trains" not in step.log
    assert "restarted" not in step.log
