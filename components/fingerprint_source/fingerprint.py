"""The fingerprint of files, from what is known without their content (pure)."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass


@dataclass(frozen=True, order=True)
class FileState:
    """What a server or a file system reports about a file.

    Attributes:
        name: Name below the source; "" for a source that is one remote file.
        size: Size in bytes; -1 if it is unknown.
        content: What depends on the content: an ETag, or a SHA-256 in hex; "" if it is unknown.
        modified: Time of the last write, as the server or the file system writes it; "" if it is unknown.
    """

    name: str
    size: int
    content: str
    modified: str


def fingerprint(states: Iterable[FileState]) -> str:
    """Return a hash of the states of files, whatever their order, with the number of files and of bytes.

    Returns:
        "sha256:HEX files=NUMBER bytes=NUMBER". The number of bytes is "unknown" if the size of a file is unknown.
    """
    files = sorted(states)
    # JSON separates the fields, so that no two lists of states have the same text.
    digest = hashlib.sha256(json.dumps([astuple(file) for file in files]).encode()).hexdigest()
    size = "unknown" if any(file.size < 0 for file in files) else sum(file.size for file in files)
    return f"sha256:{digest} files={len(files)} bytes={size}"
