"""What this library uses of CPython without its promise, with the reason, the versions and the test of the use.

tests/trainers/test_cpython_internals.py fails when the use is no longer needed.
"""

import atexit


def run_exit_functions() -> None:
    """Run the functions that the program has registered with `atexit`, and forget them.

    Python runs them only after all threads of the program have ended, and no public function does it earlier, nor ends
    the wait: https://docs.python.org/3/library/threading.html#thread-objects and
    https://github.com/python/cpython/issues/86128. Needed by all versions of Python up to 3.13. `os._exit` alone would
    skip the functions by which Horovod and PyTorch leave their peers.
    """
    atexit._run_exitfuncs()
