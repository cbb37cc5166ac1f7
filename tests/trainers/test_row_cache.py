"""The cache of records on the local disk."""

import os
import resource
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from kfp_distributed.trainers.runtime.data_loading.row_cache import RowCache


def block(number, rows=100):
    return np.full((rows, 5), number, np.float32)


def read(cache, key, rows=100):
    mapped = cache.mapped([key], [rows], 5)
    return mapped and mapped.records[mapped.numbers]


BYTES = block(0).nbytes


@contextmanager
def cache(folder, limit=10**9, spare=0):
    opened = RowCache(folder, limit, spare)
    try:
        yield opened
    finally:
        opened.close()


def test_blocks_are_found_as_they_were_stored(tmp_path):
    with cache(tmp_path / "new folder") as rows:
        assert read(rows, (0, 0)) is None
        assert rows.put((0, 0), block(1))
        assert rows.put((0, 1), block(2, 7))
        assert rows.put((0, 0), block(3)), "the block of a key never changes"
        for _ in range(2):
            np.testing.assert_array_equal(read(rows, (0, 0)), block(1))
            np.testing.assert_array_equal(read(rows, (0, 1), 7), block(2, 7))
        assert rows.stored_bytes == BYTES + block(2, 7).nbytes
    assert read(rows, (0, 0)) is None


@pytest.mark.parametrize(("limit", "stored"), [(0, 0), (BYTES - 1, 0), (2 * BYTES, 2), (3 * BYTES - 1, 2)])
def test_the_size_is_bounded_and_the_first_blocks_stay(tmp_path, limit, stored):
    with cache(tmp_path, limit) as rows:
        assert [rows.put(number, block(number)) for number in range(5)] == [True] * stored + [False] * (5 - stored)
        assert [read(rows, number) is not None for number in range(5)] == [True] * stored + [False] * (5 - stored)
        assert rows.stored_bytes == stored * BYTES


def test_the_last_bytes_of_the_disk_stay_free(tmp_path):
    state = os.statvfs(tmp_path)
    with cache(tmp_path, spare=state.f_blocks * state.f_frsize) as rows:
        assert not rows.put(0, block(0))


def test_a_full_disk_is_no_error(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with cache(tmp_path) as rows:
        assert rows.put(0, block(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES + BYTES // 2, limits[1]))
        try:
            assert not rows.put(1, block(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not rows.put(2, block(2)), "it does not try again"
        assert rows.stored_bytes == BYTES
        np.testing.assert_array_equal(read(rows, 0), block(0))
        assert read(rows, 1) is None


def test_two_caches_of_a_folder_do_not_disturb_each_other(tmp_path):
    with cache(tmp_path) as one, cache(tmp_path) as other:
        one.put(0, block(1))
        other.put(0, block(2))
        np.testing.assert_array_equal(read(one, 0), block(1))
        np.testing.assert_array_equal(read(other, 0), block(2))


def test_a_process_that_is_killed_leaves_no_file(tmp_path):
    program = f"""
import os, signal, numpy
from kfp_distributed.trainers.runtime.data_loading.row_cache import RowCache
cache = RowCache({str(tmp_path)!r}, 10**9, 0)
assert cache.put(0, numpy.zeros((100, 5), numpy.float32))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert [*tmp_path.iterdir()] == []


def test_a_block_that_is_stored_while_the_cache_is_closed_reaches_no_other_file(tmp_path):
    """The next file that the process opens gets the number of the cache's descriptor."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            rows, ends = RowCache(tmp_path, 10**9, 0), threading.Event()

            def store(rows=rows, ends=ends):
                for key in count():
                    if ends.is_set():
                        return
                    rows.put(key, block(7, 2))

            threads = [threading.Thread(target=store) for _ in range(2)]
            for thread in threads:
                thread.start()
            while not rows.stored_bytes:
                pass
            rows.close()
            with tempfile.TemporaryFile(dir=tmp_path, buffering=0) as other:
                ends.set()
                for thread in threads:
                    thread.join()
                assert os.fstat(other.fileno()).st_size == 0
    finally:
        sys.setswitchinterval(before)


def test_mapped_records_need_no_advice_to_the_system(tmp_path, monkeypatch):
    """The system macOS takes none."""
    monkeypatch.delattr(os, "posix_fadvise")
    with cache(tmp_path) as rows:
        rows.put(0, block(1))
        np.testing.assert_array_equal(rows.mapped([0], [100], 5).records, block(1))
