"""Stores the report of a failed training, because KFP's launcher uploads no output of a step that fails."""

import shlex
from pathlib import Path
from urllib.parse import quote

from kfp_distributed.cluster_api.configuration import OWN_NAMESPACE
from kfp_distributed.components.train.run.deadline import call_within
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.kfp_backend import KFP_NAMESPACE, UI_ARTIFACT, UI_NAMESPACE_PREFIX
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store

UPLOAD_SECONDS = 5.0
"""Seconds that the upload may delay the end of a failed step. A report has less than 2 MB."""


def store_report(uri: str, page: str) -> str:
    """Upload a report to its artifact's URI.

    Args:
        uri: URI of the artifact. A local path is not uploaded, because the step has written that file already.
        page: The HTML page.

    Returns:
        Lines for the end of the step's log: the location of the report, or why it is not stored.
    """
    if "://" not in uri:
        return f"Report: {uri}" if Path(uri).exists() else "Report not stored: the disk of this step is full."
    timeout = f"Report not stored: the upload to {uri} took longer than {UPLOAD_SECONDS:g} s."
    return call_within(UPLOAD_SECONDS, lambda: _upload(uri, page)) or timeout


def _upload(uri: str, page: str) -> str:
    try:
        store = open_store(uri, retry_seconds=UPLOAD_SECONDS)
        store.write("", page.encode(), "text/html; charset=utf-8")
    except (StorageError, ValueError, OSError) as error:
        return f"Report not stored: {error}"
    namespace = OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else KFP_NAMESPACE
    return describe_location(store, namespace)


def describe_location(store: Store, namespace: str) -> str:
    """Return the locations of a report as text.

    The KFP UI serves every object of its own store. In multi-user mode the query must name the run's namespace.

    Args:
        store: The object store, opened at the URI of the report.
        namespace: Namespace of the run.

    Returns:
        The object's URI, its address in the KFP UI, and a command that downloads it.
    """
    scheme, key = store.uri.partition("://")[0].lower(), str(store.root)
    address = UI_ARTIFACT.format(scheme=scheme, bucket=quote(store.bucket), key=quote(key), namespace=quote(namespace))
    own_folder = f"{UI_NAMESPACE_PREFIX}/{namespace}/"
    refusal = (
        ""
        if namespace == KFP_NAMESPACE or key.startswith(own_folder)
        else f"    (since KFP 2.17, the UI of a multi-user installation answers 403: not below {own_folder})\n"
    )
    source = shlex.quote(f"s3://{store.bucket}/{key}")
    return (
        f"Report: {scheme}://{store.bucket}/{key}\n"
        f"  in a browser: ADDRESS_OF_THE_KFP_UI/{address}\n"
        f"{refusal}"
        f"  as a file: aws s3 cp {source} report.html --endpoint-url {store.endpoint}"
    )
