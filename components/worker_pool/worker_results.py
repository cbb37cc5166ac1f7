"""What the pods of a step leave for it in the object store: that its output is complete, or why there is none."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kfp_distributed.storage.errors import KeyNotFound
from kfp_distributed.storage.store import Store

_RESULT = "result.json"


@dataclass(frozen=True)
class WorkerResult:
    """The end of the work. It is stored when everything else is.

    Attributes:
        request: Hash of the job's description.
        metadata: What the step needs to know of the output. All values are JSON.
        error: Why there is no output; "" if there is.
    """

    request: str
    metadata: Mapping[str, Any]
    error: str = ""


def read_result(store: Store, request: str) -> WorkerResult | None:
    """Return the result of a job; None if there is none yet, or if it is of another job.

    Raises:
        StorageError: The store cannot be read.
    """
    try:
        result = WorkerResult(**json.loads(store.read(_RESULT)))
    except KeyNotFound:
        return None
    return result if result.request == request else None


def store_error(store: Store, request: str, error: Exception) -> None:
    """Store why there is no output.

    Raises:
        StorageError: It cannot be stored.
    """
    _write(store, WorkerResult(request, {}, f"{type(error).__name__}: {error}"))


def store_result(store: Store, request: str, metadata: Mapping[str, Any]) -> None:
    """Store that the output is complete.

    Raises:
        StorageError: It cannot be stored.
    """
    _write(store, WorkerResult(request, metadata))


def forget_result(store: Store) -> None:
    """Delete the error of an earlier attempt.

    Raises:
        StorageError: It cannot be deleted.
    """
    store.delete([_RESULT])


def delete_all(store: Store) -> None:
    """Delete what the pods and the step have stored.

    Raises:
        StorageError: It cannot be deleted.
    """
    store.delete([entry.key for entry in store.list()])


def _write(store: Store, result: WorkerResult) -> None:
    store.write(_RESULT, json.dumps(asdict(result)).encode())
