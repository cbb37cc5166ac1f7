"""The deployments of the InferenceService "digits" in the tests of `deploy_model`."""

from kfp_distributed.components.deploy_model.deployment_request import DeploymentRequest
from kfp_distributed.components.deploy_model.exported_version import ExportedVersion
from kfp_distributed.components.deploy_model.inference_service import deployment_id, next_service
from kfp_distributed.components.deploy_model.served_copies import ServedCopies
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store

KEY = "inferenceservices/digits"
TASK = "s3://mlpipeline/v2/artifacts/p/run-1/deploy-model/task-1"


def version(number):
    files = (FileEntry("saved_model.pb", 5, ""), FileEntry("variables/variables.index", 5, ""))
    return ExportedVersion(f"s3://models/digits/{number}", "digits", number, "tensorflow", files)


def served(api):
    """Return the number of the version that a model server would load."""
    return api.version_at(api.objects[KEY]["spec"]["predictor"]["model"]["storageUri"])


def copies(bucket):
    """Return the numbers of the versions that have a complete copy."""
    return sorted(int(file.parent.name) for file in bucket.glob(".served/*/*/saved_model.pb"))


def changes(api):
    return [request for request in api.requests if request.split()[0] in ("POST", "PUT", "DELETE")]


def pod_suffix(number, task=TASK):
    return deployment_id(None, DeploymentRequest("digits"), version(number), task)


def deploy_without_end(api, number):
    """Change the service as a step that is killed at once."""
    source = {"kfp-distributed/run": "run-1", "kfp-distributed/task": "killed"}
    request = DeploymentRequest("digits")
    deployment = deployment_id(None, request, version(number), "killed")
    service = next_service(api.objects[KEY], request, version(number), deployment, source, is_good=True)
    uri = service["spec"]["predictor"]["model"]["storageUri"]
    ServedCopies(open_store(str(api.bucket)), version(number), "digits").copy(uri)
    api.put(KEY, service)
