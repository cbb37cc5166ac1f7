"""A real SeaweedFS for tests, which Kubeflow Pipelines ships as its object store since 2.15.

Put the program `weed` on the PATH: download it from github.com/seaweedfs/seaweedfs/releases (linux_amd64.tar.gz), or
build it by `go build ./weed` in the source. Release 4.44 works.
"""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kfp_distributed.components.train.run.runners.local.ports import free_ports
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.storage.object_stores.embedded import EmbeddedStore, embedded_object_store

# The S3 server answers 4 s after the start on an idle machine.
_START_SECONDS = 120
_PARTS = ("master", "volume", "filer", "s3")


@contextmanager
def seaweedfs(folder: Path) -> Iterator[EmbeddedStore]:
    """Serve an object store with its data in a folder. Tests are skipped where the program is missing."""
    program = shutil.which("weed")
    if not program:
        pytest.skip("no program weed on the PATH: see tests/seaweedfs.py")
    ports = free_ports(2 * len(_PARTS))
    grpc_ports = dict(zip(_PARTS, ports[len(_PARTS) :], strict=True))
    store = EmbeddedStore(f"http://127.0.0.1:{ports[3]}", "seaweedfs", "secret-key-of-the-tests", folder)
    keys = {"accessKey": store.access_key, "secretKey": store.secret_key}
    account = {"name": "tests", "credentials": [keys], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [account]}))
    argv = [program, "server", "-dir=.", "-ip=127.0.0.1", "-s3", "-s3.config=s3.json", "-master.telemetry=false"]
    argv += [f"-{part}.port={port}" for part, port in zip(_PARTS, ports, strict=False)]
    argv += [f"-{part}.port.grpc={port}" for part, port in grpc_ports.items()]
    # By default these sockets are in /tmp, and two further APIs have ports.
    argv += ["-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    # Each bucket takes several volumes. With 0, their number depends on the free disk space and the size of one.
    argv += ["-volume.max=0", "-master.volumeSizeLimitMB=64"]
    # Otherwise a write of an administrator creates its bucket.
    argv.append("-s3.autoCreateBucket=false")
    log = folder / "server.log"
    try:
        # The data is temporary, so the server needs no time to stop.
        with log.open("wb") as output, ProcessGroup(grace_seconds=0) as group:
            process = group.start("seaweedfs", argv, cwd=folder, stdout=output)
            _wait_until_ready(store, process, log)
            yield store
    finally:
        for part, port in grpc_ports.items():  # A killed server leaves these, and has no option for their folder.
            Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


def _wait_until_ready(store: EmbeddedStore, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{store.endpoint}/healthz", timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text()[-2000:]}") from None
        time.sleep(0.05)


on_each_store = pytest.mark.parametrize(
    "server", [embedded_object_store, seaweedfs], ids=["rclone", "seaweedfs"], indirect=True
)
"""Runs a test with each of the real S3 servers: see the fixture `server`."""
