"""The remarks that TensorFlow logs at each start, and a filter that hides them while it is imported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STARTUP_REMARK = (
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|oneDNN custom operations are on"
    r"|This TensorFlow binary is optimized to use available CPU instructions"
    r"|To enable the following instructions: .* rebuild TensorFlow"
    r"|Unable to register cu\w+ factory"
    r"|computation placer already registered"
)
"""Regular expression to search for in a log line. These lines require no action. TensorFlow 2.21 logs most of them
while its libraries are loaded, before TF_CPP_MIN_LOG_LEVEL takes effect."""

_FILTER = f"""
import re, sys
remark = re.compile(b{STARTUP_REMARK!r})
for line in sys.stdin.buffer:
    if not remark.search(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
"""Program of a separate process, so that the last lines of a library that aborts are still logged. Replicas do not use
it: a replica is process 1 of its container, and the filter would end with it. The train step filters their logs."""

_FILTER_SECONDS = 5
"""Seconds to wait for the last lines of the filter."""


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Filter the remarks of TensorFlow, which is imported inside the block; TF_CPP_MIN_LOG_LEVEL=0 keeps them."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    stderr = os.dup(2)
    # Ctrl-C in a terminal reaches all processes of its group. The filter ends with its input.
    filter_command = [sys.executable, "-IS", "-c", _FILTER]
    log_filter = subprocess.Popen(filter_command, stdin=subprocess.PIPE, stdout=stderr, process_group=0)
    assert log_filter.stdin
    os.dup2(log_filter.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        log_filter.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # A child process of the import may keep the pipe open.
            log_filter.wait(_FILTER_SECONDS)
