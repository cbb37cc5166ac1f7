"""Open the store of an address."""

from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.kubeflow.credentials import Credentials, credentials_from_environment
from kfp_distributed.storage.object_stores.s3 import S3Store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri


def open_store(uri: str, credentials: Credentials | None = None, retry_seconds: float = 60) -> Store:
    """Open the store of an address. Its root is the address.

    Args:
        uri: s3://bucket/prefix, minio://bucket/prefix, file:///path or a path. It need not exist.
        credentials: Credentials of the object store. Default: those of the environment. Ignored for local folders.
        retry_seconds: Approximate time, in seconds, for which a request is retried after a transient error.
            Default: 60.

    Raises:
        ValueError: The address is not valid, or the environment has no valid credentials.
    """
    location = parse_uri(uri)
    if location.scheme == "file":
        return FolderStore(location.key, uri)
    return S3Store(uri, credentials or credentials_from_environment(uri=uri), retry_seconds)
