"""Stops the process of an object store for a test."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hanging(object_store):
    """Stop the process of a store. Connections are accepted, but no request is answered."""
    (process,) = [
        int(file.parent.name)
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if file.read_bytes().endswith(f"\0{object_store.folder}\0".encode())
    ]
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)
