"""The files of the library and the hash of their content."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

NAMESPACE = "kfp_distributed"

STEP_ROOMS = ("components", "library", "processes", "reports", "storage", "trainers")
"""The packages that steps need. Pipelines and the command line run where pipelines are written."""

REPLICA_ROOMS = ("library", "processes", "storage", "trainers")
"""The packages that the replicas of a job need."""

_ENDINGS = (".py", ".html", ".css", ".js", ".yaml", ".gz")
"""The files that belong to the library: sources and the data that they read."""


def read_library(rooms: Sequence[str] = STEP_ROOMS) -> dict[str, bytes]:
    """Return the files of packages of the library that is installed here. Nothing is imported.

    Args:
        rooms: Names of the packages below `kfp_distributed`.

    Returns:
        Content by path, such as "kfp_distributed/storage/uri.py", sorted by path.

    Raises:
        ModuleNotFoundError: A package is not installed.
    """
    content = {}
    for room in rooms:
        spec = find_spec(f"{NAMESPACE}.{room}")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{NAMESPACE}.{room} is not installed")
        folder = Path(spec.submodule_search_locations[0])
        for file in folder.rglob("*"):
            path = file.relative_to(folder)
            # What editors leave in hidden files and folders is not the library's.
            if file.suffix in _ENDINGS and not any(part.startswith(".") for part in path.parts):
                content[f"{NAMESPACE}/{room}/{path.as_posix()}"] = file.read_bytes()
    return dict(sorted(content.items()))


def content_hash(content: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over paths and contents in hexadecimal digits.

    It is the same for an installed library and for each of its archives.
    """
    digest = hashlib.sha256()
    for path in sorted(content):
        digest.update(f"{path}\0{len(content[path])}\0".encode() + content[path])
    return digest.hexdigest()
