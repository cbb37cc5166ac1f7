"""A function in pods of the stock Python image, in which its packages are installed when the pods start."""

import re
import uuid

import pytest
from cluster.jobs import left_behind
from cluster.test_launch import function

from kfp_distributed.storage import credentials_from_environment, open_store
from kfp_distributed.storage.model import verify_model

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# Installing takes half a minute: meanwhile the test reads the pod.
TAKES = "import toolz\nprint('takes', sum(toolz.take(3, range(9))), flush=True)"


def test_packages_are_installed_without_an_image(start, api, training_namespace, bucket, store_environment):
    """The namespace enforces the Pod Security Standard "restricted"."""
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    # The package index may respond slowly.
    task_config = {"env": [{"name": "PIP_DEFAULT_TIMEOUT", "value": "60"}]}
    program = {**function(TAKES), "image": "", "packages": ["toolz"]}
    environment = {"KFP_DISTRIBUTED_TENSORFLOW_IMAGE": ""}
    step = start(program, model_uri=uri, task_config=task_config, environment=environment)
    step.wait_for(r"worker-0: installing \(")
    (pod,) = api.list_namespaced_pod(training_namespace, label_selector=f"kfp-distributed/job={step.name}").items
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    assert [container.image for container in containers] == ["python:3.11"] * 2
    assert step.verdict(500)["succeeded"], step.log
    assert re.search(r"worker-0: packages installed in \d", step.log)
    assert "[worker-0] takes 3" in step.log
    model = verify_model(open_store(uri, credentials_from_environment(store_environment)))
    assert (model.job, [file.path for file in model.files]) == (step.name, ["weights"])
    assert left_behind(step) == []
