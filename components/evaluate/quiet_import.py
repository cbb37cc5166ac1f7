"""Keeps the remarks that TensorFlow prints while it is imported out of the log."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kfp_distributed.components.startup_remarks import STARTUP_REMARK

_FILTER = f"""
import re, sys
remark = re.compile(b{STARTUP_REMARK!r})
for line in sys.stdin.buffer:
    if not remark.search(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
"""A process of its own, so that the last lines of a library that aborts come through. It would end with a process 1,
as a replica is: there the train step leaves the remarks out."""

_FILTER_SECONDS = 5
"""How long to wait for the filter's last lines."""


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Import TensorFlow inside this block to leave its remarks out; TF_CPP_MIN_LOG_LEVEL=0 keeps them."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    stderr = os.dup(2)
    log_filter = subprocess.Popen([sys.executable, "-IS", "-c", _FILTER], stdin=subprocess.PIPE, stdout=stderr)
    assert log_filter.stdin
    os.dup2(log_filter.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        log_filter.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # A process that the import has left running keeps the pipe open.
            log_filter.wait(_FILTER_SECONDS)
