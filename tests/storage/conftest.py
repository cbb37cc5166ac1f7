import sys
from pathlib import Path

import pytest

from kfp_distributed.storage import embedded_object_store

# The tests here and those against a cluster share store_contract.py.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One real S3 server for all tests; each test has a bucket of its own."""
    with embedded_object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running
