"""Read the files of the library, and hash their content."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

NAMESPACE = "kfp_distributed"

STEP_PACKAGES = ("cluster_api", "components", "library", "processes", "reports", "storage", "trainers")
"""The packages that steps need. The packages `pipelines` and `cli` run only on the user's machine."""

REPLICA_PACKAGES = ("cluster_api", "library", "processes", "storage", "trainers")
"""The packages that replicas need."""

_EXTENSIONS = (".py", ".html", ".css", ".js", ".yaml", ".gz")
"""File extensions of the library: sources and their data files."""


def read_library(packages: Sequence[str] = STEP_PACKAGES) -> dict[str, bytes]:
    """Return the files of the installed library. No package is imported.

    Args:
        packages: Names of the packages below `kfp_distributed`. Default: those that steps need.

    Returns:
        Content by path, such as "kfp_distributed/storage/uri.py", sorted by path.

    Raises:
        ModuleNotFoundError: A package is not installed.
    """
    content = {}
    for package in packages:
        spec = find_spec(f"{NAMESPACE}.{package}")
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{NAMESPACE}.{package} is not installed")
        folder = Path(spec.submodule_search_locations[0])
        for file in folder.rglob("*"):
            path = file.relative_to(folder)
            # Hidden files and folders are those of editors.
            if file.suffix in _EXTENSIONS and not any(part.startswith(".") for part in path.parts):
                content[f"{NAMESPACE}/{package}/{path.as_posix()}"] = file.read_bytes()
    return dict(sorted(content.items()))


def content_hash(content: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of all paths and contents in hexadecimal digits.

    An installed library and its archives have the same hash.
    """
    digest = hashlib.sha256()
    for path in sorted(content):
        digest.update(f"{path}\0{len(content[path])}\0".encode() + content[path])
    return digest.hexdigest()
