"""Copy local artifacts to object storage for replicas on a cluster, and copy the model back.

This lets a pipeline that runs on a laptop train on a cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kfp_distributed.components.train.run.facts import Log
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import MODEL_MANIFEST
from kfp_distributed.storage.object_stores.buckets import require_bucket
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri, parse_uri
from kfp_distributed.trainers.runtime.job_description import STORE_SECONDS


@contextmanager
def staged(request: Request, log: Log) -> Iterator[Request]:
    """Stage the local folders of a request below its `checkpoint_uri`, and yield a request with the staged folders.

    If the block succeeds, the model is downloaded to the local folder. The staged objects are deleted in any case. The
    exception is a complete model that could not be downloaded. A request without local folders is yielded unchanged.

    Args:
        request: The request.
        log: Receives a line of the step's log.

    Raises:
        ValueError: There are local folders, but `checkpoint_uri` is not in object storage, or its bucket does not
            exist.
        StorageError: A folder cannot be uploaded, or the model cannot be downloaded.
    """
    folders = {name: getattr(request, name) for name in ("train_uri", "validation_uri", "model_uri")}
    local_folders = {name: uri for name, uri in folders.items() if uri and "://" not in uri}
    if not local_folders:
        yield request
        return
    if not request.checkpoint_uri or parse_uri(request.checkpoint_uri).scheme != "s3":
        raise ValueError(
            f"checkpoint_uri = {request.checkpoint_uri!r} is not in object storage. Pods cannot read this machine's "
            "disk, so set it to a folder such as s3://bucket/training"
        )
    root = join_uri(request.checkpoint_uri, request.job_name, "staged")
    store = open_store(root)
    require_bucket(store, "checkpoint_uri", request.checkpoint_uri)

    is_downloaded = False

    def clean_up() -> None:
        try:
            keys = [entry.key for entry in store.list()]
            keeps_model = not is_downloaded and f"model_uri/{MODEL_MANIFEST}" in keys
            store.delete([key for key in keys if not (keeps_model and key.startswith("model_uri/"))])
            if keeps_model:
                log("WARNING", f"kept the complete model in {join_uri(root, 'model_uri')}")
        except StorageError as error:  # Not raised, because it would hide why the training failed.
            log("WARNING", f"cannot delete the staged folder {root}: {error}")

    with ended_by_signals(clean_up):
        for name in local_folders.keys() - {"model_uri"}:
            store.upload_folder(local_folders[name], name)
        staged_folders: dict[str, Any] = {name: join_uri(root, name) for name in local_folders}
        yield replace(request, **staged_folders)
        if "model_uri" in local_folders:
            model = open_store(join_uri(root, "model_uri"), retry_seconds=STORE_SECONDS)
            model.download_folder(local_folders["model_uri"])
            is_downloaded = True
