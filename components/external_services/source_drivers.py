"""Sources of Google Cloud Storage, Azure and Hugging Face, by fsspec and the driver of each."""

import importlib
import logging
import os
import re
from asyncio import TimeoutError as AsyncTimeoutError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

from kfp_distributed.components.external_services.request_retries import TRANSIENT_STATUS, Retries, TransientError
from kfp_distributed.library.address_secrets import has_user, mask_secrets, without_secrets
from kfp_distributed.library.packages import install
from kfp_distributed.library.start import INSTALLS_PACKAGES

BLOCK_BYTES = 8 << 20
"""Size of a request in bytes."""

# Base classes of the errors that the HTTP clients of the drivers raise when a connection fails.
_CONNECTION_ERRORS = {
    *("ClientConnectionError", "ClientPayloadError"),  # aiohttp
    *("ServiceRequestError", "ServiceResponseError"),  # azure.core
    "TransportError",  # httpx; google.auth uses the name for a server of tokens that does not answer
}
_T = TypeVar("_T")


class Driver(NamedTuple):
    """A package through which fsspec reads a kind of source.

    Attributes:
        module: Name of the module.
        requirement: Requirement that pip installs.
        extra: Extra of kfp-distributed that has the requirement.
        variables: Environment variables with the account and the credentials.
    """

    module: str
    requirement: str
    extra: str
    variables: str


_GOOGLE = Driver("gcsfs", "gcsfs>=2025.3", "gcs", "GOOGLE_APPLICATION_CREDENTIALS")
_AZURE = Driver(
    "adlfs",
    "adlfs>=2024.12",
    "azure",
    "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or "
    "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ANON",
)
_HUGGING_FACE = Driver("huggingface_hub", "huggingface_hub>=0.30,<3", "huggingface", "HF_TOKEN")

DRIVERS: Mapping[str, Driver] = {
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hf": _HUGGING_FACE,
}
"""Drivers by the scheme of an address, in lower case."""

# Files at the root of a repository of Hugging Face that describe its data, and are not part of them.
_DESCRIPTIONS = re.compile(r"(?i)README\.md|LICEN[CS]E(\.\w+)?|dataset_infos?\.json")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a source.

    Attributes:
        name: Path below the source, with "/"; "" for a source that is one file.
        path: Path by which the driver reads it.
        size: Size in bytes.
        content: What depends on the content: an ETag or a hash; "" if it is unknown.
        modified: Time of the last write; "" if it is unknown.
    """

    name: str
    path: str
    size: int
    content: str
    modified: str


def driver_of(source: str) -> Driver | None:
    """Return the driver of a source; None if the library reads it itself, or not at all."""
    scheme, separator, _ = source.partition("://")
    return DRIVERS.get(scheme.lower()) if separator else None


class RemoteFiles:
    """The files of a source that a driver of fsspec reads. Credentials are those that the driver finds.

    A step in a stock image installs a missing driver first, as it installs its other packages.

    Args:
        source: Address with a scheme of `DRIVERS`.

    Raises:
        ValueError: The driver is missing and the step installs nothing, or the address is not complete or has a user.
        OSError: The driver has no credentials.
        SystemExit: pip cannot install the driver.
    """

    def __init__(self, source: str) -> None:
        scheme, _, rest = source.partition("://")
        if has_user(source):
            raise ValueError(
                f"source {without_secrets(source)} has a user or password in its address, which is possible only for "
                "http:// and https://. Set the environment variables of its credentials instead"
            )
        # Without this, gcsfs asks for the type of a bucket over gRPC, which proxies and emulators do not know.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        self._driver = DRIVERS[scheme.lower()]
        provide_driver(source)
        import fsspec

        address = f"{scheme.lower()}://{rest}"
        self._leaves_out_descriptions = scheme.lower() == "hf"
        # Not by fsspec.open(), which also takes chains such as zip://a::file://b.
        kind = fsspec.get_filesystem_class(scheme.lower())
        with driver_errors():
            self._path = str(kind._strip_protocol(address)).strip("/")
            if not self._path:
                raise ValueError(f"source {scheme}:// has no bucket or folder: give the address of a file or folder")
            settings = {**kind._get_kwargs_from_urls(address), "skip_instance_cache": True, "use_listings_cache": False}
            try:
                self._filesystem: Any = kind(**settings)
            except ValueError as error:
                raise ValueError(
                    f"source {scheme}://... lacks an account or a setting: {error}. Set {self._driver.variables}"
                ) from None
        if self._driver is _AZURE:
            _limit_retries_of_azure(self._filesystem)
        # It logs a traceback after six attempts, which take a minute and have no setting. The error says the same.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        self._retries = Retries()

    def list(self) -> tuple[RemoteFile, ...]:
        """Return the file of the source, or the files of its folder and the folders below, sorted by name.

        Of a repository of Hugging Face, README.md, LICENSE, dataset_infos.json and hidden files at its root are left
        out. Empty if there is nothing.

        Raises:
            OSError: The server does not answer or refuses the request, or an object has a Content-Encoding.
        """
        try:
            self._filesystem.invalidate_cache()
            details = self._retry(lambda: self._filesystem.find(self._path, detail=True))
            # Of a file, HfFileSystem finds nothing. Of a file or of nothing, adlfs returns a list of names.
            if not details or not isinstance(details, dict):
                detail = self._retry(lambda: self._filesystem.info(self._path))
                details = {detail["name"]: detail} if detail["type"] == "file" else {}
        except FileNotFoundError:
            return ()
        files = sorted((self._describe(path, detail) for path, detail in details.items()), key=lambda file: file.name)
        # Some tools create an object whose key ends with a slash to represent a folder.
        return tuple(file for file in files if not file.path.endswith("/") and not self._is_description(file.name))

    def _is_description(self, name: str) -> bool:
        is_root = self._leaves_out_descriptions and self._path.count("/") == 2
        return is_root and (name.startswith(".") or bool(_DESCRIPTIONS.fullmatch(name)))

    def _describe(self, path: str, detail: Mapping[str, Any]) -> RemoteFile:
        if encoding := detail.get("contentEncoding"):
            raise OSError(
                f"object {path} has Content-Encoding: {encoding}, so that Google sends its content unpacked and not in "
                f"parts. Run: gcloud storage objects update gs://{path} --clear-content-encoding. A table stays "
                "compressed then, and is read so"
            )
        name = path.removeprefix(self._path).strip("/")
        content = _first(detail, "etag", "ETag", "blob_id", "md5Hash")
        modified = _first(detail, "mtime", "updated", "last_modified", "LastModified", "created")
        return RemoteFile(name, path, int(detail.get("size") or 0), content, modified)

    def read(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield the content of a file in blocks of at most 8 MiB. After an error, the block is requested again.

        Raises:
            OSError: The server does not answer, refuses a request, or the file has another size now.
        """
        position = 0
        while position < file.size:
            end = min(position + BLOCK_BYTES, file.size)
            block = self._retry(partial(self._filesystem.cat_file, file.path, position, end))
            if len(block) != end - position:
                raise OSError(
                    f"the server sent {len(block)} instead of {end - position} bytes of {file.path}: the file has "
                    "changed. Start the step again"
                )
            position = end
            yield block

    def _retry(self, request: Callable[[], _T]) -> _T:
        try:
            return self._retries.run(driver_errors()(request))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise error if self._retries.has_answered else self._first_error(error) from None

    def _first_error(self, error: OSError) -> OSError:
        return OSError(f"{str(error).rstrip('.')}. Check {self._driver.variables}")


def _limit_retries_of_azure(filesystem: Any) -> None:  # noqa: ANN401
    """Leave the retries to RemoteFiles, which knows whether the server has answered.

    Those of the SDK take almost three minutes without a server or credentials. adlfs has no setting for them.
    """
    policy = getattr(getattr(filesystem.service_client, "_config", None), "retry_policy", None)
    if policy is not None:
        policy.total_retries = 0
    # It warns of each kind of credentials that it does not find. The error says it.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)


@contextmanager
def driver_errors() -> Iterator[None]:
    """Convert the errors of the drivers, which have no common class, to an OSError without secrets.

    Raises:
        TransientError: The error may pass.
        ValueError, FileNotFoundError: As in the driver.
        OSError: Any other error.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(mask_secrets(str(error))) from None
    except FileNotFoundError as error:
        raise FileNotFoundError(mask_secrets(str(error))) from None
    except Exception as error:  # noqa: BLE001  (each driver has classes of its own)
        text = mask_secrets(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
        text = text.partition(" Attempted credentials:")[0]  # azure.identity lists the errors of all that it knows.
        status = _status(error)
        names = {base.__name__ for base in type(error).__mro__}
        is_connection = isinstance(error, (ConnectionError, TimeoutError, AsyncTimeoutError))
        if status in TRANSIENT_STATUS or (status is None and (is_connection or names & _CONNECTION_ERRORS)):
            raise TransientError(text, is_answer=status is not None) from None
        raise OSError(text) from None


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error of a driver; None if it has none."""
    response = getattr(error, "response", None)
    for value in (*(getattr(error, name, None) for name in ("status_code", "status", "code")), response):
        value = getattr(value, "status_code", value)
        if isinstance(value, (int, str)) and str(value).isdigit():
            return int(value)
    return None


def _first(detail: Mapping[str, Any], *names: str) -> str:
    return next((str(detail[name]) for name in names if detail.get(name)), "")


def provide_driver(source: str) -> None:
    """Install the driver of a source if it is missing and the step installs packages.

    Args:
        source: Address with a scheme of `DRIVERS`.

    Raises:
        ValueError: It is missing, and the step installs nothing. Or HF_TOKEN is not valid, and the driver would use it.
        SystemExit: pip failed.
    """
    scheme = source.partition("://")[0].lower()
    driver = DRIVERS[scheme]
    if driver is _HUGGING_FACE and not os.environ.get("HF_TOKEN", "").isascii():
        raise ValueError("HF_TOKEN has a character that is not ASCII, which no token has: copy the token again")
    if driver is _HUGGING_FACE:  # It reads this when it is imported. Its warnings have the signatures of files.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if find_spec(driver.module):
        return
    if not os.environ.get(INSTALLS_PACKAGES):
        raise ValueError(
            f"source {scheme}://... needs the Python package {driver.module}, which is missing here. On your machine, "
            f"run: pip install 'kfp-distributed[{driver.extra}]'. For an image of the steps, run: "
            f"make image-steps DRIVERS='{driver.requirement}'"
        )
    install(driver.requirement)
    importlib.import_module(driver.module)
