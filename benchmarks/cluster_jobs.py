"""What the benchmarks of a cluster share: a namespace, a request of the step, and the times of a job."""

import contextlib
import io
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kubernetes import client, config
from prepared_data import prepare

from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage import open_store

_SECRET = "mlpipeline-minio-artifact"
_ENDS = ("Succeeded", "Complete", "Failed")
WHERE = "one node with 2 cores of a shared machine"
"""The cluster, for the header of a page."""


@contextlib.contextmanager
def benchmark_namespace() -> Iterator[str]:
    """Create a namespace with the object store's Secret, and a bucket of the same name with the digits dataset.

    At the end, all objects of the bucket and the namespace are deleted.
    """
    config.load_config()
    core, name = client.CoreV1Api(), f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    secret = core.read_namespaced_secret(_SECRET, "kubeflow").data
    with contextlib.ExitStack() as cleanup:
        core.create_namespace({"metadata": {"name": name}})
        cleanup.callback(core.delete_namespace, name)
        core.create_namespaced_secret(name, {"metadata": {"name": _SECRET}, "data": secret})
        store = open_store(f"s3://{name}")
        store.make_bucket()
        cleanup.callback(lambda: store.delete([entry.key for entry in store.list()]))
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
            store.upload_folder(prepare(Path(scratch)) / "train", "train_dataset")
        yield name


def function_request(
    bucket: str, source: str, image: str, parameters: Mapping[str, Any], distribution: Mapping[str, Any]
) -> Request:
    """Return the request of a new training by the function `fit` of a source, on the bucket of a benchmark."""
    number = uuid.uuid4().hex[:8]
    return Request(
        train_uri=f"s3://{bucket}/train_dataset",
        model_uri=f"s3://{bucket}/models/{number}",
        checkpoint_uri=f"s3://{bucket}/checkpoints",
        train_specification={"function": "fit", "source": source, "image": image},
        train_parameters=dict(parameters),
        distribution_specification=dict(distribution),
        identity=(number,),
    )


class Times(NamedTuple):
    """Seconds of one run: until the job exists, from its end to the return, and in total."""

    before: float
    after: float
    total: float


class JobLife(threading.Thread):
    """A thread that records when a job exists, and when its operator has recorded its end."""

    def __init__(self, namespace: str, resource: tuple[str, str], name: str) -> None:
        """Start the thread.

        Args:
            namespace: Namespace of the job.
            resource: "group/version" and plural of the job.
            name: Name of the job.
        """
        super().__init__(daemon=True)
        version, plural = resource
        self._api, self._job = connect(namespace), name
        self._path = f"/apis/{version}/namespaces/{namespace}/{plural}"
        self.begin = self.end = 0.0
        self.start()

    def run(self) -> None:
        """Watch the job until it has ended."""
        query = {"fieldSelector": f"metadata.name={self._job}", "watch": "1"}
        for line in self._api.lines(self._path, query, 600):
            self.begin = self.begin or time.monotonic()
            conditions = json.loads(line)["object"].get("status", {}).get("conditions") or []
            if any(condition["type"] in _ENDS and condition["status"] == "True" for condition in conditions):
                self.end = time.monotonic()
                return

    def times(self, started: float, returned: float) -> Times:
        """Return the times of a run."""
        self.join(10)
        return Times(self.begin - started, returned - self.end, returned - started)
