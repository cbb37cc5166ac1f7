"""The last commit whose compiled steps contained the library as a packed archive, for comparison.

If the clone does not have this commit, such as a shallow clone, the comparison is skipped.
"""

import shutil
import subprocess
import sys
from pathlib import Path

COMMIT = "ffcf98f359f4ee8547d1723876405cbe47af98e4"

_REPOSITORY = Path(__file__).parents[1]
_PACKERS = ("pyppmd>=1.1,<2", "python-minifier>=3,<4")
"""Requirements of that commit that this version no longer has."""


def has_packed() -> bool:
    """Return whether the clone has the commit."""
    command = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    return subprocess.run(command, cwd=_REPOSITORY, stderr=subprocess.DEVNULL, check=False).returncode == 0


def write_packed_specs(folder: Path) -> None:
    """Write the compiled files of the commit into a folder."""
    _export(folder, "component_specs")
    for file in (folder / "component_specs").iterdir():
        file.rename(folder / file.name)


def install_packed(folder: Path) -> dict[str, str]:
    """Make a folder from which Python imports the library of the commit.

    Returns:
        Environment variables for that Python.
    """
    # The folders of the repository are the packages of kfp_distributed.
    _export(folder / "kfp_distributed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", folder, *_PACKERS], check=True)
    return {"PYTHONPATH": str(folder)}


def _export(folder: Path, *paths: str) -> None:
    folder.mkdir(parents=True)
    archive = folder / "commit.tar"
    subprocess.run(["git", "archive", "--output", archive, COMMIT, *paths], cwd=_REPOSITORY, check=True)
    shutil.unpack_archive(archive, folder)
    archive.unlink()
