"""Registers an exported version in Kubeflow's Model Registry, with its REST API v1alpha3."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from kfp_distributed.components.export_model.bounded_delay import run_bounded
from kfp_distributed.components.export_model.version_record import VersionRecord

_REQUEST_SECONDS = 5.0


class ModelRegistryError(Exception):
    """The registry refused a request, did not answer, or has another version of this name."""


def register_in_kubeflow(variables: Mapping[str, str], record: VersionRecord) -> None:
    """Register a version unless it is registered. A failure is a warning in the step's log.

    Args:
        variables: Environment variables of the step. KFP_DISTRIBUTED_MODEL_REGISTRY must be set.
        record: The version. One in a local folder is not registered.
    """
    if not record.is_remote:
        return
    if error := run_bounded(lambda: _register(variables, record)):
        print(f"WARNING {record.uri} is not registered in Kubeflow's Model Registry: {error}", flush=True)


def version_body(record: VersionRecord, model_id: str) -> dict[str, Any]:
    """Return the body of the request that creates a version.

    Args:
        record: The version.
        model_id: The registry's ID of the registered model.
    """
    metrics = {
        name: {"metadataType": "MetadataDoubleValue", "double_value": float(value)}
        for name, value in record.metrics.items()
    }
    run = {"metadataType": "MetadataStringValue", "string_value": record.run}
    return {
        "name": str(record.version),
        "registeredModelId": model_id,
        "customProperties": {**metrics, "kfp_distributed.run": run},
    }


def artifact_body(record: VersionRecord) -> dict[str, Any]:
    """Return the body of the request that creates the artifact of a version."""
    return {
        "artifactType": "model-artifact",
        "name": record.model_name,
        "uri": record.uri,
        "modelFormatName": record.model_format,
        "state": "LIVE",
        # The API description proposes these two words for a run of Kubeflow Pipelines.
        "modelSourceKind": "pipelines",
        "modelSourceClass": "pipelinerun",
        "modelSourceId": record.run,
    }


def check_address(address: str) -> str:
    """Return the address of a registry without a slash at its end.

    Raises:
        ValueError: It is no http:// or https:// address, or has a user. The message has no credentials.
    """
    try:
        parts = urlsplit(address.strip())
        is_valid = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:  # Its message may have a password.
        is_valid = False
    if not is_valid:
        raise ValueError(
            "KFP_DISTRIBUTED_MODEL_REGISTRY is not the address of a server: use http(s)://HOST[:PORT] without a user"
        )
    return address.strip().rstrip("/")


def _register(variables: Mapping[str, str], record: VersionRecord) -> str:
    """Register a version; return the error, or "" if it succeeded."""
    try:
        address = check_address(variables["KFP_DISTRIBUTED_MODEL_REGISTRY"])
        token_file = variables.get("KFP_DISTRIBUTED_MODEL_REGISTRY_TOKEN_FILE", "")
        registry = ModelRegistry(address, Path(token_file).read_text("utf-8").strip() if token_file else "")
        registry.register(record)
    except (ModelRegistryError, ValueError, OSError) as error:
        return str(error)
    return ""


class ModelRegistry:
    """Sends requests to one registry. No request is repeated, and no redirect is followed.

    Args:
        address: URL of the registry.
        token: Bearer token; "" for none.

    Raises:
        ValueError: The token cannot be sent in an HTTP header. The message does not have it.
    """

    def __init__(self, address: str, token: str) -> None:
        if not re.fullmatch("[ -~]*", token):
            # Otherwise http.client refuses the header later, and its message has the value.
            raise ValueError("the token has a line break or a character that is not ASCII")
        self.address = address
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._pool = PoolManager(retries=False, timeout=Timeout(total=_REQUEST_SECONDS))

    def register(self, record: VersionRecord) -> None:
        """Register a version unless it is registered.

        Raises:
            ModelRegistryError: The registry refuses a request, does not answer, or has this version of the model with
                another address.
        """
        name = record.model_name
        model = self._find_or_create("registered_model", {"name": name}, "registered_models", {"name": name})
        query = {"name": str(record.version), "parentResourceId": model["id"]}
        path = f"registered_models/{model['id']}/versions"
        version = self._find_or_create("model_version", query, path, version_body(record, model["id"]))
        query = {"name": name, "parentResourceId": version["id"]}
        path = f"model_versions/{version['id']}/artifacts"
        artifact = self._find_or_create("model_artifact", query, path, artifact_body(record))
        if artifact.get("uri") != record.uri:
            raise ModelRegistryError(
                f"version {record.version} of {name} is registered with the address {artifact.get('uri')}: export to "
                "one bucket, or give the model another name"
            )
        print(f"Kubeflow's Model Registry has {record.uri} as version {record.version} of {name}")

    def _find_or_create(
        self, find: str, query: Mapping[str, str], create: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a resource, which is created if it is missing. Its ID is a text."""
        find = f"{find}?{urlencode(query)}"
        status, resource = self._request("GET", find)
        if status == 404:
            status, resource = self._request("POST", create, body)
            if status == 409:  # Another export has just created it.
                status, resource = self._request("GET", find)
        if status not in (200, 201):
            message = str(resource.get("message", ""))[:300]
            raise ModelRegistryError(f"{self.address} answers {status} {message}".rstrip())
        if not isinstance(resource.get("id"), str):
            raise ModelRegistryError(f"{self.address} does not answer as Kubeflow's Model Registry does")
        return resource

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Send a request; return the HTTP status, and the JSON object of the answer, empty if it is none."""
        url = f"{self.address}/api/model_registry/v1alpha3/{path}"
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            response = self._pool.request(method, url, body=data, headers=self._headers, redirect=False)
        except (HTTPError, OSError) as error:
            raise ModelRegistryError(f"{self.address} does not answer: {error}") from None
        try:
            answer = json.loads(response.data)
        except (ValueError, RecursionError):
            answer = None
        return response.status, answer if isinstance(answer, dict) else {}
