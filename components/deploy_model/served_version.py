"""A version that was deleted after its deployment: the copy that the model servers load still has its files."""

from kfp_distributed.cluster_api.client import ClusterApi
from kfp_distributed.components.deploy_model.exported_version import ExportedVersion, open_exports, parse_version_uri
from kfp_distributed.components.deploy_model.inference_service import URI_ANNOTATION, model_address, previous_service
from kfp_distributed.components.deploy_model.served_copies import ServedCopies
from kfp_distributed.components.deploy_model.service_checks import service_path
from kfp_distributed.components.model_versions.versions import LANGUAGE_MODEL, SERVED_FORMATS
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.store import Store


def find_served_version(api: ClusterApi, name: str, model_uri: str) -> tuple[ExportedVersion, Store] | None:
    """Find a version in the copies of the InferenceService that serves it, or that would serve it after an undo.

    Args:
        api: The cluster, with the namespace of the InferenceService.
        name: Name of the InferenceService.
        model_uri: Address of the version.

    Returns:
        The version, whose files are those of the copy, and the store of its folder for exports. None if the
        InferenceService has no complete copy of this version.

    Raises:
        ValueError: The address is not that of a version.
        ClusterError: The API server refused the request or did not answer.
        StorageError: The store cannot be read.
    """
    uri, model_name, number = parse_version_uri(model_uri)
    store, current = open_exports(model_uri), api.read(service_path(api.namespace, name))
    for service in (current, previous_service(current) if current else None):
        predictor = service["spec"]["predictor"] if service else {}
        model_format = predictor.get("model", {}).get("modelFormat", {}).get("name")
        if not service or model_format not in (*SERVED_FORMATS.values(), LANGUAGE_MODEL):
            continue
        version = ExportedVersion(uri, model_name, number, model_format)
        copies, copy = ServedCopies(store, version, name), model_address(predictor)
        if service["metadata"].get("annotations", {}).get(URI_ANNOTATION) == uri and copies.is_complete(copy):
            folder = copies.folder(copy)
            files = (FileEntry(entry.key.removeprefix(folder), entry.size, "") for entry in store.list(folder))
            return version._replace(files=tuple(files), folder=folder), store
    return None
