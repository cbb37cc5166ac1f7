"""The scratch of a step whose tasks run elsewhere. It outlives a step that dies, so that the next start goes on."""

import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.stored_files import SourcePath, StoredPath
from kfp_distributed.components.prepare_data.stored_tasks import Engine, StoredTasks
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.storage.errors import ChecksumMismatch, StorageError
from kfp_distributed.storage.folder import FolderStore
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.store import Store
from kfp_distributed.storage.uri import join_uri


@contextmanager
def step_tasks(
    engine: Engine | None, files: Mapping[str, SourcePath | None], options: Options
) -> Iterator[StoredTasks | None]:
    """Start the processes of an engine for a step.

    The scratch is deleted if the block exits, or if its error is about the data or the options, which another start
    would raise again, or about an object that was replaced. After any other error it stays.

    Args:
        engine: Where tasks run; None for this process.
        files: File or folder of each source, None for the digits.
        options: Options of the step.

    Yields:
        What runs the tasks; None for this process.
    """
    if engine is None:
        yield None
        return
    address = join_uri(engine.scratch, _step_hash(files, options))
    is_done = False
    try:
        with engine.start(address) as tasks:
            yield tasks
            is_done = True
    except (ValueError, ChecksumMismatch):  # After a replaced object, the next start has another scratch.
        is_done = True
        raise
    finally:
        if is_done:
            _delete(open_store(address))


def _step_hash(files: Mapping[str, SourcePath | None], options: Options) -> str:
    """Return a hash of everything that decides about the rows: the sources' states, the options and the program."""
    states = {split: [*_states(path)] if path else [] for split, path in files.items()}
    versions = (sys.version, pa.__version__, np.__version__, content_hash(read_library()))
    return hashlib.sha256(pickle.dumps((states, options, versions))).hexdigest()[:32]


def _states(path: SourcePath) -> Iterator[tuple[str, int, int | str]]:
    """Yield the path, the size, and the time of the last change or the ETag of each file."""
    if isinstance(path, StoredPath):
        yield from ((join_uri(path.uri, file.key), file.size, file.etag) for file in path.objects())
        return
    folders = [(str(path.parent), (), (path.name,))] if path.is_file() else sorted(os.walk(path))
    for folder, _, names in folders:
        for name in sorted(names):
            file = Path(folder, name)
            state = file.stat()
            yield str(file), state.st_size, state.st_mtime_ns


def _delete(store: Store) -> None:
    """Delete the scratch. The datasets are complete without it, so errors are ignored."""
    if isinstance(store, FolderStore):
        shutil.rmtree(store.root, ignore_errors=True)
        return
    with suppress(StorageError):
        store.delete([entry.key for entry in store.list()])
