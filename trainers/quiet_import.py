"""Keeps the remarks that TensorFlow prints while it is imported out of the log.

TF_CPP_MIN_LOG_LEVEL does not reach them: TensorFlow's libraries print them while they are loaded, before any of their
settings counts (seen with 2.21).
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_FILTER = r"""
import re, sys
remark = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)"
    rb"|I\d{4} "
    rb"|.*Unable to register cu\w+ factory"
    rb"|.*computation placer already registered"
)
for line in sys.stdin.buffer:
    if not remark.match(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""
"""Drops INFO lines, and warnings that TensorFlow prints at each start where it has CUDA, and nothing else. A process of
its own, so that the last words of a library that aborts come through."""


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


class _QuietFinder(MetaPathFinder):
    """Finds TensorFlow as Python does, and has it imported inside `quiet_tensorflow`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "tensorflow" else None
        if spec and spec.loader:
            run = spec.loader.exec_module

            def run_quietly(module: ModuleType) -> None:
                with quiet_tensorflow():
                    run(module)

            spec.loader.exec_module = run_quietly  # type: ignore[method-assign]
        return spec


def quiet_tensorflow_imports() -> None:
    """Make `import tensorflow` leave its remarks out, wherever in this process it comes."""
    sys.meta_path.insert(0, _QuietFinder())
