import sys
from pathlib import Path

import pytest

from kfp_distributed.storage import embedded_object_store

# Tests in tests/cluster import store_contract.py too.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A real S3 server for all tests. Each test uses its own bucket."""
    with embedded_object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running
