"""How many requests are in progress at the same time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from faulty_proxy import Fault
from store_contract import fill

from kfp_distributed.storage import StorageError
from kfp_distributed.storage.parallel import PARALLEL_REQUESTS, PARALLEL_TRANSFERS, run_in_parallel

pytestmark = pytest.mark.takes(2)

MIB = 1 << 20
FILES = 3 * PARALLEL_TRANSFERS


@pytest.fixture
def most(proxy):
    """A function that calls another one, and returns the largest number of its PUT requests in progress at once."""
    numbers, lock, running, is_full = [0], threading.Lock(), [0], threading.Event()

    def note():
        with lock:
            running[0] += 1
            numbers.append(running[0])
            if running[0] == PARALLEL_TRANSFERS:
                is_full.set()
        is_full.wait(60)
        time.sleep(0.1)  # One request too many would arrive meanwhile.
        with lock:
            running[0] -= 1

    def call(function):
        proxy.faults = [Fault("PUT", times=10**6, before=note)]
        function()
        return max(numbers)

    return call


def test_small_files_are_sent_at_the_same_time(store, proxy, tmp_path):
    fill(tmp_path / "model", {f"{index:03}": b"x" for index in range(PARALLEL_REQUESTS)})
    barrier = threading.Barrier(PARALLEL_REQUESTS, timeout=120)
    proxy.faults = [Fault("PUT", times=PARALLEL_REQUESTS, before=barrier.wait)]
    store.upload_folder(tmp_path / "model")
    assert len(store.list()) == PARALLEL_REQUESTS


def test_larger_files_take_turns_because_each_is_held_in_memory(store, most, tmp_path):
    fill(tmp_path / "model", {f"{index:03}": bytes(2 * MIB) for index in range(FILES)})
    assert most(lambda: store.upload_folder(tmp_path / "model")) == PARALLEL_TRANSFERS


@pytest.mark.parametrize("size", [2 * MIB, -1], ids=["large", "of unknown size"])
def test_copies_that_may_take_long_take_turns(store, most, size):
    """The server answers when a copy is done, and a request waits for an answer only so long."""
    store.write("object", b"x")

    def copy_all():
        with ThreadPoolExecutor(FILES) as pool:
            list(pool.map(lambda index: store.copy(store, "object", f"copy-{index}", size=size), range(FILES)))

    assert most(copy_all) == PARALLEL_TRANSFERS


def test_an_object_of_known_size_is_copied_by_one_request(store, proxy):
    store.write("object", b"data")
    proxy.requests.clear()
    store.copy(store, "object", "copy", size=4)
    assert [request.split()[0] for request in proxy.requests] == ["PUT"]
    assert store.read("copy") == b"data"


def test_a_copy_that_fails_after_its_status_was_sent_is_an_error(store, proxy):
    """S3 sends the status 200 before it copies, and an error in the body of the answer."""
    store.write("object", b"data")
    body = b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"
    proxy.faults = [Fault("PUT", change=lambda _: body)]
    with pytest.raises(StorageError, match="InternalError"):
        store.copy(store, "object", "copy", size=4)


def test_no_call_begins_after_one_has_failed():
    """The first item is slow, so its result is not known when another one fails."""
    begun, has_failed = [], threading.Event()

    def call(item):
        begun.append(item)
        if item == 1:
            has_failed.set()
            raise ValueError(item)
        assert has_failed.wait(60)
        time.sleep(0.1)  # The thread of the failed call would take a further item meanwhile.

    with pytest.raises(ValueError, match="1"):
        run_in_parallel(call, range(100), threads=2)
    assert begun == [0, 1]


def test_results_are_in_the_order_of_the_items():
    assert run_in_parallel(lambda item: time.sleep(0.01 * (3 - item)) or item, range(4)) == [0, 1, 2, 3]
