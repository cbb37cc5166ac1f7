"""Connections of PUT requests, which the standard library sends first."""

from dataclasses import replace

import pytest
from faulty_proxy import Fault
from store_contract import fill

from kfp_distributed.storage import StorageError, open_store
from kfp_distributed.storage.parallel import PARALLEL_REQUESTS


def put_requests(proxy):
    return [request for request in proxy.requests if request.startswith("PUT")]


def test_requests_share_a_connection(store, proxy):
    store.write("first", b"1")
    before = proxy.connections
    for index in range(20):
        store.write(f"{index}", b"1")
    assert proxy.connections - before <= 1


def test_files_of_a_folder_share_connections(store, proxy, tmp_path):
    fill(tmp_path, {f"{index:03}": b"x" for index in range(4 * PARALLEL_REQUESTS)})
    store.upload_folder(tmp_path)
    # The first requests of all threads may be sent before the store has answered.
    assert proxy.connections <= 2 * PARALLEL_REQUESTS + 2


def test_a_connection_that_the_server_has_closed_is_replaced(store, proxy):
    store.write("first", b"1")
    proxy.faults = [Fault("PUT", cut_after=0)]
    proxy.requests.clear()
    store.write("second", b"2")
    store.write("third", b"3")
    assert len(put_requests(proxy)) == 2
    assert (store.read("second"), store.read("third")) == (b"2", b"3")


def test_an_error_of_a_request_on_a_shared_connection_has_its_advice(store, proxy):
    store.write("first", b"1")
    wrong = open_store(store.uri, replace(store.credentials, secret_key="wrong"))
    proxy.requests.clear()
    with pytest.raises(StorageError, match=r"access denied, check AWS_ACCESS_KEY_ID .*\(SignatureDoesNotMatch\)"):
        wrong.write("second", b"2")
    assert len(put_requests(proxy)) == 1
