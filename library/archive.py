"""Pack the library into a zip archive and into the ConfigMap of a namespace."""

import base64
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from kfp_distributed.library import VERSION
from kfp_distributed.library.content import NAMESPACE, content_hash, read_library

ARCHIVE_KEY = "library.zip"
"""Key of the archive in the ConfigMap."""

HASH_ANNOTATION = "kfp-distributed/content-hash"
"""Annotation of the ConfigMap with the full hash. The name of the ConfigMap has its first digits."""

LIBRARY_LABELS = {
    "app.kubernetes.io/name": "kfp-distributed",
    "app.kubernetes.io/component": "library",
    "app.kubernetes.io/managed-by": "kfp-distributed",
}
"""Labels of the ConfigMap, beside `VERSION_LABEL`."""

VERSION_LABEL = "app.kubernetes.io/version"
"""Label of the ConfigMap with the version of the library."""

_HASH_DIGITS = 12
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a zip archive can have. It is fixed so that archives of equal content are equal."""


def make_archive(content: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive. Equal content gives equal bytes.

    Args:
        content: File contents by path.
        compression: Default: ZIP_DEFLATED, from which Python can import. Its bytes depend on the version of zlib.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        # Before Python 3.13, a namespace package is found only in an archive that lists its folder.
        for path, data in ((f"{NAMESPACE}/", b""), *sorted(content.items())):
            entry = zipfile.ZipInfo(path, _FIXED_DATE)
            entry.create_system = 3  # Unix, also when this runs on Windows.
            entry.external_attr = (0o40755 << 16 | 0x10) if path.endswith("/") else 0o100644 << 16
            archive.writestr(entry, data, compression, 9)
    return file.getvalue()


def make_small_archive(content: Mapping[str, bytes], compression: int = zipfile.ZIP_BZIP2) -> bytes:
    """Return a zip archive whose one entry, `ARCHIVE_KEY`, is an archive of the files.

    The files are compressed together, because most are short and alike: the library takes 60 % of the bytes that it
    takes with each file by itself, and 75 % with ZIP_DEFLATED.

    Args:
        content: File contents by path.
        compression: Default: ZIP_BZIP2, whose bytes are the same on every machine. Some builds of Python lack it.
    """
    return make_archive({ARCHIVE_KEY: make_archive(content, zipfile.ZIP_STORED)}, compression)


def read_archive(data: bytes) -> dict[str, bytes]:
    """Return the file contents of an archive by path, also of one by `make_small_archive`.

    Raises:
        zipfile.BadZipFile: The data is not a zip archive.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if ARCHIVE_KEY in archive.namelist():
            return read_archive(archive.read(ARCHIVE_KEY))
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def library_name(hash_: str) -> str:
    """Return the name of the ConfigMap with this content hash: kfp-distributed-VERSION-HASH."""
    return f"kfp-distributed-{VERSION}-{hash_[:_HASH_DIGITS]}"


def library_config_map(namespace: str) -> dict[str, Any]:
    """Return the ConfigMap with the installed library.

    The ConfigMap is immutable. Its name contains the hash of its content, so each version has its own ConfigMap.
    """
    content = read_library()
    hash_ = content_hash(content)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": library_name(hash_),
            "namespace": namespace,
            "labels": {**LIBRARY_LABELS, VERSION_LABEL: VERSION},
            "annotations": {HASH_ANNOTATION: hash_},
        },
        "immutable": True,
        "binaryData": {ARCHIVE_KEY: base64.b64encode(make_small_archive(content)).decode("ascii")},
    }
