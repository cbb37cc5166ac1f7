"""The folder of the language model that is fine-tuned: fetched once for all ranks of a replica."""

import fcntl
import os
import time
from pathlib import Path

from huggingface_hub import snapshot_download

from kfp_distributed.storage.files import describe_file
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import PARALLEL_TRANSFERS, run_in_parallel
from kfp_distributed.trainers.programs.base_model import (
    PATTERNS,
    check_files,
    is_fetched,
    is_in_store,
    model_hash,
    parse_hub,
)
from kfp_distributed.trainers.runtime.job_description import REPLICA_FOLDER_VARIABLE, STORE_SECONDS

_COMPLETE = "complete"


def base_folder(address: str) -> Path:
    """Return the folder of a model in this replica. A model of a store or of the Hugging Face Hub is fetched into it.

    One rank of the replica fetches it, and the others wait. A model that `train` or `export_model` has stored is
    checked by the SHA-256 of its files.

    Args:
        address: A folder, an address of a store such as s3://bucket/model, or hf://OWNER/NAME@REVISION.

    Raises:
        ValueError: There is no model.
        StorageError: The store fails.
    """
    hub = parse_hub(address)
    if not (hub or is_in_store(address)):
        folder = Path(address)
        check_files(address, _names(folder) if folder.is_dir() else ())
        return folder
    parent = Path(os.environ.get(REPLICA_FOLDER_VARIABLE, ""), "base_model")
    parent.mkdir(exist_ok=True)
    folder = parent / "files"
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (parent / _COMPLETE).exists():
            begin = time.monotonic()
            print(f"fetching the model {address}", flush=True)
            if hub:
                snapshot_download(hub.name, revision=hub.revision, allow_patterns=[*PATTERNS], local_dir=folder)
            else:
                _download(address, folder)
            check_files(address, _names(folder))
            size = sum(file.stat().st_size for file in folder.iterdir())
            print(f"fetched {size / (1 << 30):.2f} GiB in {time.monotonic() - begin:.0f} s", flush=True)
            (parent / _COMPLETE).touch()
    return folder


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def _download(address: str, folder: Path) -> None:
    store = open_store(address, retry_seconds=STORE_SECONDS)
    paths = [entry.key for entry in store.list()]
    expected = {}
    if MODEL_MANIFEST in paths:
        expected = {entry.path: entry for entry in ModelManifest.from_json(store.read(MODEL_MANIFEST)).files}
    folder.mkdir(exist_ok=True)
    fetched = [path for path in paths if is_fetched(path) and path != MODEL_MANIFEST]
    run_in_parallel(lambda path: store.download(path, folder / path, expected.get(path)), fetched, PARALLEL_TRANSFERS)


def content_hash(folder: Path) -> str:
    """Return the `model_hash` of the fetched files of a model."""
    return model_hash(describe_file(folder / name, name) for name in filter(is_fetched, _names(folder)))
