"""Ranges of objects behind a proxy that injects faults of the network and the server."""

import os
import uuid
from dataclasses import replace

import pytest
from faulty_proxy import Fault, faulty_proxy

from kfp_distributed.storage import StorageError, open_store
from kfp_distributed.storage.uri import parse_endpoint

BIG = os.urandom(20 << 20)


@pytest.fixture
def proxy(server):
    with faulty_proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def store(server, proxy):
    """A store behind the proxy. Its retries end after 20 s. No test takes that long."""
    host, secure = parse_endpoint(proxy.url)
    credentials = replace(server.credentials(), endpoint=host, secure=secure)
    proxied = open_store(f"s3://test-{uuid.uuid4().hex[:12]}/root", credentials, retry_seconds=20)
    proxied.make_bucket()
    return proxied


def test_broken_range_is_requested_again(store, proxy):
    store.write("big", BIG)
    proxy.requests.clear()
    proxy.faults = [Fault("GET", status=503), Fault("GET", times=3, cut_after=5_000_000)]
    assert store.read_range("big", 1_000_000, 9_000_000).data == BIG[1_000_000:10_000_000]
    assert len(proxy.requests) == 5
    proxy.faults = [Fault("GET", times=1000, cut_after=5_000_000)]
    with pytest.raises(StorageError, match=r"root/big': .*\(ProtocolError: "):
        store.read_range("big", 0, len(BIG))


@pytest.mark.parametrize("fault", [{"status": 200}, {"headers": {"Content-Range": "bytes 0-3/9"}}], ids=str)
def test_answer_that_is_not_the_range_is_an_error(store, proxy, fault):
    store.write("shard", b"abcdefghi")
    proxy.faults = [Fault("GET", **fault)]
    with pytest.raises(StorageError, match=r"root/shard': requested 4 bytes from byte 2 on, but the server answered "):
        store.read_range("shard", 2, 4)
