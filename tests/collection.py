"""Collect the tests in less processor time: a plugin of pytest. Each process of pytest-xdist collects all of them.

In a fresh clone, each would also rewrite the assertions of all files, because they begin at the same time. So each
first rewrites its part of them into the cache of pytest, where the others find them.
"""

import contextlib
import gc
import sys

import pytest

# Until all tests are collected, nearly all objects stay, and the collector looks at all of them again and again.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    try:
        return (yield)
    finally:
        # What has been collected stays until the end, so that the collector need not look at it again.
        gc.freeze()
        gc.enable()


def pytest_configure(config):
    worker = getattr(config, "workerinput", None)
    if worker and not sys.dont_write_bytecode:
        paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
        files = {file for path in paths for file in (path, *path.rglob("*.py")) if file.match("test_*.py")}
        for file in sorted(files)[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
            # Another pytest may have other functions, and a file may be wrong. The collection rewrites what is missing.
            with contextlib.suppress(Exception):
                rewrite(file, config)


def rewrite(file, config):
    """Rewrite the assertions of a file into the cache of pytest, if they are not there."""
    from _pytest.assertion import rewrite as of_pytest

    cached = cache_of(file)
    if of_pytest.try_makedirs(cached.parent) and read(file) is None:
        version, code = of_pytest._rewrite_test(file, config)
        of_pytest._write_pyc(config.stash[of_pytest.assertstate_key], code, version, cached)


def read(file):
    """Return the rewritten program of a file that the cache of pytest has, or None if it has none or an old one."""
    from _pytest.assertion import rewrite as of_pytest

    return of_pytest._read_pyc(file, cache_of(file))


def cache_of(file):
    from _pytest.assertion import rewrite as of_pytest

    return of_pytest.get_cache_dir(file) / f"{file.stem}{of_pytest.PYC_TAIL}"
