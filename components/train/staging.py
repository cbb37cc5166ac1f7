"""Artifacts on this machine's disk for replicas that cannot see it: they go through object storage, there and back.

So a pipeline that runs on a laptop can train on a cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kfp_distributed.components.train.launch import STORE_AWAY_SECONDS, Request, job_name
from kfp_distributed.components.train.log_format import log
from kfp_distributed.components.train.signals import ended_by_signals
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import MODEL_MANIFEST
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import join_uri, parse_uri


@contextmanager
def staged(request: Request) -> Iterator[Request]:
    """Yields a request with the local folders of another in object storage, under its `checkpoint_uri`.

    When the block ends well, the model is brought to where the first request wants it. What was staged is deleted,
    whichever way the block ends, but for a whole model that could not be brought. A request without local folders is
    yielded as it is.

    Raises:
        ValueError: There are local folders, and `checkpoint_uri` is not in object storage.
        StorageError: They cannot be stored, or the model cannot be brought.
    """
    folders = {name: getattr(request, name) for name in ("train_uri", "validation_uri", "model_uri")}
    local = {name: uri for name, uri in folders.items() if uri and "://" not in uri}
    if not local:
        yield request
        return
    if not request.checkpoint_uri or parse_uri(request.checkpoint_uri).scheme != "s3":
        raise ValueError(
            f"checkpoint_uri = {request.checkpoint_uri!r} is not in object storage, and pods do not see this machine's "
            "disk; name a folder such as s3://bucket/training"
        )
    root = join_uri(request.checkpoint_uri, job_name(request.task_name, request.identity), "staged")
    store = open_store(root)
    store.make_bucket()

    brought = False

    def clean_up() -> None:
        try:
            keys = [entry.key for entry in store.list()]
            stays = not brought and f"model_uri/{MODEL_MANIFEST}" in keys
            store.delete([key for key in keys if not (stays and key.startswith("model_uri/"))])
            if stays:
                log("WARNING", f"the model is whole, and stays in {join_uri(root, 'model_uri')}")
        except StorageError as error:  # It must not hide how the training ended.
            log("WARNING", f"what was staged could not be deleted: {error}")

    with ended_by_signals(clean_up):
        for name in local.keys() - {"model_uri"}:
            store.upload_folder(local[name], name)
        moved: dict[str, Any] = {name: join_uri(root, name) for name in local}
        yield replace(request, **moved)
        if "model_uri" in local:
            model = open_store(join_uri(root, "model_uri"), retry_seconds=STORE_AWAY_SECONDS)
            model.download_folder(local["model_uri"])
            brought = True
