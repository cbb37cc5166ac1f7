"""Errors of the stores."""


class StorageError(Exception):
    """Something could not be read from or written to a store.

    Attributes:
        endpoint: The server's URL; empty for a local folder.
        bucket: The bucket; empty for a local folder.
        key: The whole key in the bucket, or the local path.
        cause: What went wrong. It never holds a secret.
    """

    def __init__(self, endpoint: str, bucket: str, key: str, cause: str) -> None:
        self.endpoint, self.bucket, self.key, self.cause = endpoint, bucket, key, cause
        super().__init__(f"{endpoint}, bucket {bucket!r}, key {key!r}: {cause}" if endpoint else f"{key}: {cause}")


class KeyNotFound(StorageError):
    """There is no object of that key."""


class ChecksumMismatch(StorageError):
    """What was read is not what was expected."""
