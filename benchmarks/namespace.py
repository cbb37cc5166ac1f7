"""Create a namespace and a bucket for benchmarks on a cluster."""

import contextlib
import io
import tempfile
import uuid
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

from kubernetes import client, config

from kfp_distributed.components import prepare_data
from kfp_distributed.storage import open_store

_SECRET = "mlpipeline-minio-artifact"


@contextlib.contextmanager
def benchmark_namespace() -> Iterator[str]:
    """Create a namespace with the object store's Secret, and a bucket of the same name with the digits dataset.

    At the end, all objects of the bucket and the namespace are deleted.
    """
    config.load_config()
    core, name = client.CoreV1Api(), f"kfp-distributed-{uuid.uuid4().hex[:8]}"
    secret = core.read_namespaced_secret(_SECRET, "kubeflow").data
    core.create_namespace({"metadata": {"name": name}})
    store = open_store(f"s3://{name}")
    try:
        core.create_namespaced_secret(name, {"metadata": {"name": _SECRET}, "data": secret})
        store.make_bucket()
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
            outputs = list(signature(prepare_data.python_func).parameters)[:4]
            prepare_data.python_func(
                **{
                    output: SimpleNamespace(path=f"{scratch}/{output}", uri=f"{scratch}/{output}", metadata={})
                    for output in outputs
                },
                source="digits",
            )
            store.upload_folder(Path(scratch, "train_dataset"), "train_dataset")
        yield name
    finally:
        store.delete([entry.key for entry in store.list()])
        core.delete_namespace(name)
