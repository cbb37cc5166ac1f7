"""The scratch of a step whose tasks run elsewhere. It outlives a step that dies, so that the next start goes on."""

import hashlib
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa

from kfp_distributed.components.worker_pool.stored_tasks import Engine, StoredTasks
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.storage.errors import ChecksumMismatch, StorageError
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri


@contextmanager
def step_tasks(engine: Engine | None, identity: object) -> Iterator[StoredTasks | None]:
    """Start the processes of an engine for a step.

    The scratch is deleted if the block exits, or if its error is about the data or the options, which another start
    would raise again, or about an object that was replaced. After any other error it stays.

    Args:
        engine: Where tasks run; None for this process.
        identity: Everything that decides about the results, beside the program. It can be pickled.

    Yields:
        What runs the tasks; None for this process.
    """
    if engine is None:
        yield None
        return
    address = join_uri(engine.scratch, _step_hash(identity))
    is_done = False
    try:
        with engine.start(address) as tasks:
            try:
                yield tasks
            except (ValueError, ChecksumMismatch):  # After a replaced object, the next start has another scratch.
                is_done = True
                if engine.has_other_machines:
                    tasks.await_abandoned()
                raise
            is_done = True
    finally:
        if is_done:
            _delete(open_store(address))


def _step_hash(identity: object) -> str:
    """Return a hash of everything that decides about the results, with the program."""
    versions = (sys.version, pa.__version__, np.__version__, content_hash(read_library()))
    return hashlib.sha256(pickle.dumps((identity, versions))).hexdigest()[:32]


def _delete(store: Store) -> None:
    """Delete the scratch. The datasets are complete without it, so errors are ignored."""
    if isinstance(store, FolderStore):
        shutil.rmtree(store.root, ignore_errors=True)
        return
    with suppress(StorageError):
        store.delete([entry.key for entry in store.list()])
