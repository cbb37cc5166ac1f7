"""Check that the bucket of a parameter exists, before a step creates anything."""

import os
import shlex

from kfp_distributed.storage.store import Store

EMBEDDED_STORE_VARIABLE = "KFP_DISTRIBUTED_EMBEDDED_STORE"
"""Variable that `local_run` sets if the store is its own S3 server, whose buckets are folders of the run."""


def require_bucket(store: Store, parameter: str, value: str) -> None:
    """Check that the store's bucket exists. A step creates no bucket, because a missing one is usually a typo.

    Two things are created: a local folder, and a bucket of the S3 server that `local_run` starts.

    Args:
        store: The store.
        parameter: Name of the parameter that names the bucket, for the error.
        value: Its value, for the error.

    Raises:
        ValueError: The bucket does not exist.
        StorageError: The server refuses the request or does not answer.
    """
    if not store.bucket or os.environ.get(EMBEDDED_STORE_VARIABLE):
        store.make_bucket()
    elif not store.bucket_exists():
        raise ValueError(
            f"{parameter}={value!r} names the bucket {store.bucket!r}, which does not exist on {store.endpoint}: "
            f"correct the name, or create the bucket with {creation_command(store.bucket, store.endpoint)} "
            f"or mc mb ALIAS/{store.bucket}"
        )


def creation_command(bucket: str, endpoint: str) -> str:
    """Return the command that creates a bucket.

    Args:
        bucket: Name of the bucket.
        endpoint: URL of the S3 server.
    """
    return f"aws s3 mb {shlex.quote(f's3://{bucket}')} --endpoint-url {endpoint}"
