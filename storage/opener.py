"""Opens the store that an address names."""

from kfp_distributed.storage.credentials import Credentials, credentials_from_environment
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.s3 import S3Store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import parse_uri


def open_store(uri: str, credentials: Credentials | None = None, retry_seconds: float = 60) -> Store:
    """Open what is stored under an address.

    Args:
        uri: s3://bucket/prefix, minio://bucket/prefix, file:///path or a path. Nothing needs to be there yet.
        credentials: How to reach the object store; by default what the environment says. Unused for local folders.
        retry_seconds: For about how long a request is repeated that fails for a passing reason.

    Raises:
        ValueError: The address is no such address, or the environment says too little.
    """
    location = parse_uri(uri)
    if location.scheme == "file":
        return FolderStore(location.key, uri)
    return S3Store(uri, credentials or credentials_from_environment(uri=uri), retry_seconds)
