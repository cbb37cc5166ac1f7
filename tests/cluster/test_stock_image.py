"""A function in pods of the stock Python image: what it needs is installed when they start."""

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


def test_packages_are_installed_where_no_image_is_named(start, api, training_namespace, bucket, store_environment):
    """In a namespace that enforces "restricted", as nobody's user."""
    uri = f"s3://{bucket}/models/{uuid.uuid4().hex}"
    # An index may be slow to answer.
    patience = {"env": [{"name": "PIP_DEFAULT_TIMEOUT", "value": "60"}]}
    program = {**function(TAKES), "image": "", "packages": ["toolz"]}
    unnamed = {"KFP_DISTRIBUTED_TENSORFLOW_IMAGE": ""}
    step = start(program, model_uri=uri, task_config=patience, environment=unnamed)
    step.wait_for(r"worker-0: installing \(pip installs its packages\)")
    (pod,) = api.list_namespaced_pod(training_namespace, label_selector=f"kfp-distributed/job={step.name}").items
    assert [each.image for each in (*pod.spec.init_containers, *pod.spec.containers)] == ["python:3.11"] * 2
    assert step.verdict(500)["succeeded"], step.log
    assert re.search(r"worker-0: packages installed in \d", step.log)
    assert "[worker-0] takes 3" in step.log
    kept = verify_model(open_store(uri, credentials_from_environment(store_environment)))
    assert (kept.job, [each.path for each in kept.files]) == (step.name, ["weights"])
    assert left_behind(step) == []
