"""Errors of the stores, and the texts of the errors of libraries."""


class StorageError(Exception):
    """A read from or a write to a store failed.

    Attributes:
        endpoint: The server's URL; empty for a local folder.
        bucket: The bucket; empty for a local folder.
        key: The full key in the bucket, or the local path.
        cause: What went wrong, and what to do where that is known. Never contains a secret.
    """

    def __init__(self, endpoint: str, bucket: str, key: str, cause: str) -> None:
        self.endpoint, self.bucket, self.key, self.cause = endpoint, bucket, key, cause
        super().__init__(f"{endpoint}, bucket {bucket!r}, key {key!r}: {cause}" if endpoint else f"{key}: {cause}")

    def __reduce__(self) -> tuple[type["StorageError"], tuple[str, str, str, str]]:
        """Pickle the arguments: a rank of a training sends its error to the others."""
        return type(self), (self.endpoint, self.bucket, self.key, self.cause)


class StoreAway(StorageError):
    """The server did not answer, or answered that it cannot serve now, until the retries had ended."""


class KeyNotFound(StorageError):
    """The object does not exist."""


class ChecksumMismatch(StorageError):
    """An object has another size or SHA-256 than expected."""


def one_line(error: object) -> str:
    """Return the text of an error of a library, such as Arrow, which may have line ends, as one line of a message."""
    return " ".join(str(error).split())
