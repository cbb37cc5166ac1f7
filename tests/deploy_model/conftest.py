"""An API server with KServe, a bucket with versions of "digits", and deployments of them."""

import pytest
from digits_deployments import TASK, version
from kserve_api import KServeApi

from kfp_distributed.components.deploy_model.deployment import Deployment
from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.storage.opener import open_store


@pytest.fixture
def bucket(tmp_path):
    """A local folder that stands for the bucket "models", with three versions."""
    for number in (3, 4, 5):
        folder = tmp_path / "digits" / str(number)
        (folder / "variables").mkdir(parents=True)
        (folder / "saved_model.pb").write_bytes(b"graph")
        (folder / "variables" / "variables.index").write_bytes(b"index")
    return tmp_path


@pytest.fixture
def api(bucket):
    with KServeApi(bucket) as server:
        yield server


@pytest.fixture
def deploy(api, bucket):
    """Deploy a version of the service "digits"; return its address and the lines of the log."""

    def run(number, task=TASK, seconds=120.0, undo_seconds=60, **parameters):
        request = DeploymentRequest("digits", **parameters)._replace(timeout_seconds=seconds)
        source = {"kfp-distributed/run": "run-1", "kfp-distributed/task": task}
        lines = []
        deployment = Deployment(
            api.connect(),
            open_store(str(bucket)),
            request,
            version(number),
            source,
            lambda level, text: lines.append(text),
            undo_seconds=undo_seconds,
        )
        return deployment.run().url, lines

    return run
