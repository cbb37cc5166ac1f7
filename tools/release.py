"""Build the files of a release: `python tools/release.py VERSION FOLDER`, which `make release` calls.

The same commit gives the same bytes, with the same versions of Python, kfp and setuptools.
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

IMAGES = ("steps", "evaluate", "tensorflow", "horovod", "pytorch", "horovod-pytorch", "language-model")
"""Folders of images/ whose names the release lists."""

_VERSION = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)


class ReleaseError(Exception):
    """The release cannot be built. The message says why and what to do."""


def main(version: str, folder: str) -> None:
    """Build a release, or exit with one line that says why not."""
    try:
        files = build_release(version, Path(folder))
    except ReleaseError as error:
        sys.exit(f"make release: {error}")
    for file in files:
        print(file)


def build_release(version: str, folder: Path, root: Path = ROOT) -> list[Path]:
    """Build the wheel, the source distribution, install.yaml, component_specs/, images.txt and SHA256SUMS.

    Args:
        version: Version of the release, which must equal VERSION in library/__init__.py.
        folder: Folder to create. What it contained is removed.
        root: Folder of the repository.

    Returns:
        The files of the release, sorted by path.

    Raises:
        ReleaseError: The version is wrong, the repository has uncommitted changes, or a command fails.
    """
    status = _run(["git", "status", "--porcelain"], root).splitlines()
    check_release(
        version,
        library_source=(root / "library" / "__init__.py").read_text(encoding="utf-8"),
        changelog=(root / "CHANGELOG.md").read_text(encoding="utf-8"),
        changes=status,
    )
    epoch = int(_run(["git", "log", "-1", "--format=%ct"], root))
    with tempfile.TemporaryDirectory() as scratch:
        source, built = Path(scratch, "source"), Path(scratch, "release")
        _export(root, source)
        built.mkdir()
        _build_distributions(source, built, epoch)
        _add_kubernetes_files(next(built.glob("*.whl")), built, Path(scratch, "library"))
        (built / "images.txt").write_text(_image_names(source), encoding="utf-8")
        content = {path.relative_to(built).as_posix(): path.read_bytes() for path in built.rglob("*") if path.is_file()}
        (built / "SHA256SUMS").write_text(checksums(content), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(built, folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_release(version: str, *, library_source: str, changelog: str, changes: list[str]) -> None:
    """Refuse a release that does not fit the repository.

    Args:
        version: Version of the release.
        library_source: Text of library/__init__.py.
        changelog: Text of CHANGELOG.md.
        changes: Lines of `git status --porcelain`.

    Raises:
        ReleaseError: The version has another form or differs from the library's, the changelog has no section for it,
            or there are uncommitted changes.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"VERSION is {version!r}; write three numbers: make release VERSION=1.2.3")
    match = _VERSION.search(library_source)
    current = match[1] if match else ""
    if version != current:
        raise ReleaseError(
            f"VERSION is {version}, but library/__init__.py has VERSION = {current!r}; set it there, run make specs "
            "and commit, or release that version"
        )
    if f"## [{version}]" not in changelog:
        raise ReleaseError(f"CHANGELOG.md has no section ## [{version}]; rename the section Unreleased and commit")
    if changes:
        names = ", ".join(line[3:] for line in changes[:3])
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise ReleaseError(f"the repository has uncommitted changes: {names}{more}; commit or stash them")


def checksums(content: Mapping[str, bytes]) -> str:
    """Return the text of SHA256SUMS, which `sha256sum --check` reads.

    Args:
        content: Content of each file by path.
    """
    return "".join(f"{hashlib.sha256(content[path]).hexdigest()}  {path}\n" for path in sorted(content))


def normalized_archive(data: bytes, epoch: int) -> bytes:
    """Return a .tar.gz file without traces of the machine that wrote it.

    Args:
        data: A .tar.gz file.
        epoch: Time of all files, in seconds since 1970.
    """
    target = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as original,
        gzip.GzipFile(filename="", fileobj=target, mode="wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(original.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(member, original.extractfile(member) if member.isfile() else None)
    return target.getvalue()


def _export(root: Path, folder: Path) -> None:
    """Extract the files of the last commit."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, capture_output=True).stdout
    folder.mkdir()
    # Python's tarfile has a safe extraction only from 3.11.4 on.
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def _build_distributions(source: Path, target: Path, epoch: int) -> None:
    """Build the wheel and the source distribution."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", str(target)]
    _run([*command, str(source)], source, SOURCE_DATE_EPOCH=str(epoch))
    for archive in target.glob("*.tar.gz"):
        archive.write_bytes(normalized_archive(archive.read_bytes(), epoch))


def _add_kubernetes_files(wheel: Path, target: Path, library: Path) -> None:
    """Write install.yaml and component_specs/ with the library of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
    command = [sys.executable, "-m", "kfp_distributed.cli.main"]
    _run([*command, "compile", str(target / "component_specs")], library, PYTHONPATH=str(library))
    text = _run([*command, "install", "--output", "yaml"], library, PYTHONPATH=str(library))
    (target / "install.yaml").write_text(text, encoding="utf-8")


def _image_names(source: Path) -> str:
    """Return the names of the images of the release, one on each line."""
    lines = (
        _run(["make", "--silent", "image-name", f"IMAGE={name}", f"PYTHON={sys.executable}"], source) for name in IMAGES
    )
    return "".join(lines)


def _run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command and return its output."""
    # A make around this one would pass its own variables on. The names of images and steps are those of a release.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS", "KFP_DISTRIBUTED_")) and name != "VERSION"
    }
    done = subprocess.run(
        command, cwd=folder, env={**inherited, **variables}, capture_output=True, text=True, umask=0o022
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tools/release.py VERSION FOLDER")
    main(sys.argv[1], sys.argv[2])
