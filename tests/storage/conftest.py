import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy

from kfp_distributed.storage import embedded_object_store, open_store
from kfp_distributed.storage.uri import parse_endpoint

# Tests in tests/cluster import store_contract.py too.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server(request, tmp_path_factory):
    """A real S3 server. Each test uses its own bucket. `on_each_store` parametrizes it."""
    serve = getattr(request, "param", embedded_object_store)
    with serve(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture
def proxy(server):
    with faulty_proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def store(server, proxy):
    """A store behind the proxy. Its retries end after 20 s. No test takes that long."""
    uri = f"s3://test-{uuid.uuid4().hex[:12]}/root"
    host, secure = parse_endpoint(proxy.url)
    proxied = open_store(uri, replace(server.credentials(), endpoint=host, secure=secure), retry_seconds=20)
    proxied.make_bucket()
    proxy.requests.clear()
    return proxied
