"""The folder of a language model, or of an adapter: fetched once for all ranks of a replica."""

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from kfp_distributed.storage.errors import ChecksumMismatch, one_line
from kfp_distributed.storage.files import FileEntry, describe_file
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest, is_manifest
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.parallel import PARALLEL_TRANSFERS, run_in_parallel
from kfp_distributed.trainers.programs.base_model import (
    HubModel,
    check_files,
    is_fetched,
    is_in_store,
    known_hash,
    model_hash,
    parse_hub,
    stored_files,
)
from kfp_distributed.trainers.programs.weight_files import check_weight_file
from kfp_distributed.trainers.runtime.job_description import REPLICA_FOLDER_VARIABLE, STORE_SECONDS

_COMPLETE = "complete"

_DAMAGED = "delete the folder, and import or save the model again"

_CONNECTION_ERRORS = {"ConnectionError", "Timeout", "TransportError"}
"""Classes of errors without an answer, of requests and httpx: huggingface_hub has used both."""

_TRANSIENT = (429, 500, 502, 503, 504)
"""HTTP statuses of a server that cannot serve now."""

_T = TypeVar("_T")


def base_folder(
    address: str,
    parent: Path | None = None,
    credentials: Credentials | None = None,
    *,
    is_adapter: bool = False,
    has_weights: bool = True,
) -> Path:
    """Return the folder of a model in this replica. A model of a store or of the Hugging Face Hub is fetched into it.

    One rank of the replica fetches it, and the others wait. Of a model with a model.json, the files that it names are
    fetched and checked by their SHA-256. So are those of a folder with a model.json, which are not copied.

    Args:
        address: A folder, an address of a store such as s3://bucket/model, or hf://OWNER/NAME@REVISION.
        parent: Folder for what is fetched. Default: base_model or adapter in the folder of the replica.
        credentials: Credentials of the object store. Default: those of the environment.
        is_adapter: Whether it is that of an adapter, with its tokenizer. Default: false, of a complete model.
        has_weights: Whether the weights are fetched, too. All ranks of a replica must say the same. Default: true.

    Raises:
        ValueError: There is no such model, or a file is damaged or not complete.
        OSError: The Hub refuses a request, or does not serve for a long time.
        ModelIncomplete: Files of its model.json are missing.
        StorageError: The store fails.
    """
    is_path, folder = not parse_hub(address) and not is_in_store(address), Path(address)
    if is_path:
        _check(address, folder, is_adapter)
        if not (has_weights and _has_manifest(folder)):
            return folder
    name = "adapter" if is_adapter else "base_model"
    parent = parent or Path(os.environ.get(REPLICA_FOLDER_VARIABLE, ""), name)
    parent.mkdir(exist_ok=True)
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_path:
            folder = parent / "files"
        if not (parent / _COMPLETE).exists():
            if is_path:
                _check_hashes(address, folder)
            else:
                _fetch(address, folder, credentials, has_weights)
                if has_weights:
                    _check(address, folder, is_adapter)
            (parent / _COMPLETE).touch()
    return folder


def _fetch(address: str, folder: Path, credentials: Credentials | None, has_weights: bool) -> None:
    begin, hub = time.monotonic(), parse_hub(address)
    print(f"fetching the model {address}{'' if has_weights else ' without its weights'}", flush=True)
    if hub:
        _download_from_hub(hub, folder, has_weights)
    else:
        _download(address, folder, credentials, has_weights)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"fetched {size / (1 << 30):.2f} GiB in {time.monotonic() - begin:.0f} s", flush=True)


def _check_hashes(address: str, folder: Path) -> None:
    """Check the files of a folder against the SHA-256 in its model.json, as a download does.

    Raises:
        ValueError: A file has another SHA-256.
        ModelIncomplete: See `stored_files`.
    """
    print(f"checking the SHA-256 of the files of {address}", flush=True)

    def check(file: FileEntry) -> None:
        if file.sha256 and describe_file(folder / file.path, file.path) != file:
            raise ValueError(
                f"{address} has a file {file.path} with another SHA-256 than in its model.json: {_DAMAGED}"
            )

    run_in_parallel(check, stored_files(open_store(str(folder.absolute()))), PARALLEL_TRANSFERS)


def _check(address: str, folder: Path, is_adapter: bool) -> None:
    names = _names(folder)
    if not is_adapter:
        check_files(address, names)
    elif missing := {"adapter_config.json", "adapter_model.safetensors"} - {*names}:
        raise ValueError(f"the adapter {address} has no {' and no '.join(sorted(missing))}: save it again")
    for name in names:
        check_weight_file(address, folder / name, names)


def _has_manifest(folder: Path) -> bool:
    return (folder / MODEL_MANIFEST).exists() and is_manifest((folder / MODEL_MANIFEST).read_bytes())


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _is_wanted(path: str, has_weights: bool) -> bool:
    return is_fetched(path) and (has_weights or not path.endswith(".safetensors"))


def _download(address: str, folder: Path, credentials: Credentials | None, has_weights: bool) -> None:
    store = open_store(address, credentials, retry_seconds=STORE_SECONDS)
    folder.mkdir(exist_ok=True)
    try:
        run_in_parallel(
            lambda file: store.download(file.path, folder / file.path, file if file.sha256 else None),
            [file for file in stored_files(store) if _is_wanted(file.path, has_weights)],
            PARALLEL_TRANSFERS,
        )
        if store.exists(MODEL_MANIFEST):  # It has the hashes, so that nobody reads the files again for them.
            store.download(MODEL_MANIFEST, folder / MODEL_MANIFEST)
    except ChecksumMismatch as error:
        raise ValueError(f"base_model is {address!r}: {error}: {_DAMAGED}") from None


def _download_from_hub(hub: HubModel, folder: Path, has_weights: bool) -> None:
    """Download a model. `snapshot_download` would return an incomplete folder if the Hub fails later."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # Its warnings have the signatures of files.
    found = _retried(hub, lambda: HfApi().model_info(hub.name, revision=hub.revision))
    print(f"{hub.revision} is the commit {found.sha}", flush=True)
    run_in_parallel(
        lambda path: _retried(hub, lambda: hf_hub_download(hub.name, path, revision=found.sha, local_dir=folder)),
        [file.rfilename for file in found.siblings or () if _is_wanted(file.rfilename, has_weights)],
        PARALLEL_TRANSFERS,
    )


def _retried(hub: HubModel, request: Callable[[], _T]) -> _T:
    """Return the result of a request to the Hub, which is repeated while the Hub does not answer or cannot serve.

    Raises:
        OSError: It fails. Neither this error nor the log has the query of an address, which may be a signature.
    """
    until, pause = time.monotonic() + STORE_SECONDS, 1.0
    while True:
        try:
            return request()
        except Exception as error:  # noqa: BLE001 - each version has other classes for errors of the connection
            # This one is raised for each error of the server. Its cause says which.
            cause = (isinstance(error, LocalEntryNotFoundError) and error.__cause__) or error
            status = getattr(getattr(cause, "response", None), "status_code", None)
            is_connection = bool(_CONNECTION_ERRORS & {kind.__name__ for kind in type(cause).__mro__})
            text = re.sub(r"\?[^\s'\"]+", "?***", one_line(f"{type(cause).__name__}: {cause}"))
            may_pass = is_connection if status is None else status in _TRANSIENT
            if not may_pass or isinstance(cause, OfflineModeIsEnabled) or time.monotonic() + pause > until:
                raise OSError(f"base_model hf://{hub.name}@{hub.revision} cannot be fetched: {text}") from None
            print(f"the Hub is not available ({text}); next attempt in {pause:g} s", flush=True)
            time.sleep(pause)
            pause = min(2 * pause, 30)


def content_hash(folder: Path) -> str:
    """Return the `model_hash` of the files of a model that are fetched, or would be.

    Args:
        folder: A folder that `base_folder` has returned. If it has a model.json, the files have the hashes in it.
    """
    if _has_manifest(folder):
        known = known_hash(ModelManifest.from_json((folder / MODEL_MANIFEST).read_text()).files)
        if known:
            return known
    return model_hash(describe_file(folder / name, name) for name in filter(is_fetched, _names(folder)))
