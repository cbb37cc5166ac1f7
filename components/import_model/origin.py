"""The models that are imported: of the Hugging Face Hub, of an object store or of a folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from kfp_distributed.components.external_services.request_retries import Retries
from kfp_distributed.components.external_services.source_drivers import driver_errors, provide_driver
from kfp_distributed.storage.files import FileEntry
from kfp_distributed.storage.opener import open_store
from kfp_distributed.storage.uri import parse_uri
from kfp_distributed.trainers.programs.base_model import HubModel, is_fetched, parse_hub, stored_files

_T = TypeVar("_T")


class Origin(Protocol):
    """A model that is imported.

    Attributes:
        address: Address of the model. That of the Hub has the commit.
        is_fixed: Whether the files at this address never change.
        files: Files to copy. The SHA-256 is "" if the origin does not have it.
    """

    address: str
    is_fixed: bool
    files: tuple[FileEntry, ...]

    def fetch(self, file: FileEntry, folder: Path) -> Path:
        """Download a file into a local folder, and return its path there.

        Raises:
            OSError: It cannot be read, or has another size than before.
        """


def open_origin(source: str) -> Origin:
    """Return the model at an address.

    Args:
        source: hf://OWNER/NAME@REVISION, an address of an object store, or a folder.

    Raises:
        ValueError: The address has another form, or the Hub's driver is missing.
        OSError: The Hub cannot be read.
        StorageError: The store cannot be read.
        ModelIncomplete: The model at the address has a model.json and lacks files of it.
    """
    hub = parse_hub(source, "source")
    return HubOrigin(hub) if hub else StoreOrigin(source)


class HubOrigin:
    """A model of the Hugging Face Hub. See `Origin`.

    Args:
        model: Name and revision.
    """

    is_fixed = True

    def __init__(self, model: HubModel) -> None:
        self._name, self._retries = model.name, Retries()
        self.address = f"hf://{model.name}@{model.revision}"
        provide_driver(self.address)
        # huggingface_hub reads these when it is imported. Some of its versions keep 10 GB of what they download.
        os.environ.setdefault("HF_XET_CHUNK_CACHE_SIZE_BYTES", "0")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        from huggingface_hub import HfApi

        found = self._request(lambda: HfApi().model_info(model.name, revision=model.revision, files_metadata=True))
        self._commit = str(found.sha)
        self.address = f"hf://{model.name}@{self._commit}"
        self.files = tuple(
            FileEntry(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else "")
            for file in found.siblings or ()
            if is_fetched(file.rfilename)
        )

    def fetch(self, file: FileEntry, folder: Path) -> Path:
        """See Origin."""
        return self._request(lambda: self._download(file.path, folder))

    def _download(self, path: str, folder: Path) -> Path:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(self._name, path, revision=self._commit, local_dir=str(folder)))
        except LocalEntryNotFoundError as error:  # Raised for each error of the server. The cause says which.
            raise error.__cause__ or error from None

    def _request(self, request: Callable[[], _T]) -> _T:
        try:
            return self._retries.run(driver_errors()(request))
        except OSError as error:
            text = str(error).rstrip(".")
            raise OSError(f"source {self.address} cannot be read: {text}. Check the address and HF_TOKEN") from None


class StoreOrigin:
    """A model of an object store or of a folder. See `Origin`.

    Args:
        source: Address or path of its folder.
    """

    is_fixed = False

    def __init__(self, source: str) -> None:
        try:
            parse_uri(source)
        except ValueError as error:
            raise ValueError(f"source: {error}. Or use hf://OWNER/NAME@REVISION") from None
        self.address, self._store = source, open_store(source)
        self.files = stored_files(self._store)

    def fetch(self, file: FileEntry, folder: Path) -> Path:
        """See Origin."""
        size = self._store.download(file.path, folder / file.path).size
        if size != file.size:
            raise OSError(
                f"{file.path} of {self.address} has {size} bytes, and had {file.size} before: run the step again when "
                "the model is complete"
            )
        return folder / file.path
