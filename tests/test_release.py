"""`make release`: what it refuses, what it builds, and that two builds are equal."""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from release import ReleaseError, build_release, check_release, checksums, normalized_archive

from kfp_distributed.library import VERSION

ROOT = Path(__file__).parents[1]
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.com")
GOOD = {
    "library_source": 'VERSION = "1.2.3"\n',
    "changelog": "# Changelog\n\n## [1.2.3] - 2026-11-23\n",
    "changes": [],
}


def test_a_release_that_fits_the_repository_is_not_refused():
    check_release("1.2.3", **GOOD)


@pytest.mark.parametrize(
    ("version", "wrong", "error"),
    [
        ("", {}, r"VERSION is ''; write three numbers: make release VERSION=1\.2\.3"),
        ("v1.2.3", {}, "VERSION is 'v1.2.3'; write three numbers"),
        ("1.3.0", {}, "VERSION is 1.3.0, but library/__init__.py has VERSION = '1.2.3'; set it there"),
        ("1.2.3", {"changelog": "## [Unreleased]\n"}, r"CHANGELOG\.md has no section ## \[1\.2\.3\]"),
        ("1.2.3", {"changes": [" M cli/main.py"]}, "uncommitted changes: cli/main.py; commit or stash them"),
        ("1.2.3", {"changes": [f"?? {n}" for n in range(5)]}, "uncommitted changes: 0, 1, 2 and 2 more; commit"),
    ],
)
def test_a_release_that_does_not_fit_the_repository_is_refused(version, wrong, error):
    with pytest.raises(ReleaseError, match=error):
        check_release(version, **{**GOOD, **wrong})


def test_checksums_are_sorted_and_in_the_form_of_sha256sum():
    empty, a = hashlib.sha256(b"").hexdigest(), hashlib.sha256(b"a").hexdigest()
    assert checksums({"z": b"", "folder/a": b"a"}) == f"{a}  folder/a\n{empty}  z\n"


def test_an_archive_has_neither_owner_nor_time():
    def archive(names, mtime, user, mode):
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as files:
            for name in names:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.uname, entry.uid, entry.mode = 1, mtime, user, mtime, mode
                files.addfile(entry, io.BytesIO(b"x"))
        return gzip.compress(raw.getvalue(), mtime=mtime)

    first = normalized_archive(archive(["a", "b"], 5, "anna", 0o600), 1000)
    assert first == normalized_archive(archive(["b", "a"], 7, "bert", 0o664), 1000)
    with tarfile.open(fileobj=io.BytesIO(first)) as files:
        assert [(file.name, file.mtime, file.uid, file.mode) for file in files] == [
            ("a", 1000, 0, 0o644),
            ("b", 1000, 0, 0o644),
        ]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with the files of this checkout in one commit, and a library that differs from the installed one."""
    folder = tmp_path_factory.mktemp("repository")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    with (folder / "storage" / "uri.py").open("a") as file:
        file.write("\nRELEASED = True\n")
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(f"{changelog.read_text()}\n## [{VERSION}] - 2026-11-23\n")
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "Release"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


@pytest.mark.takes(31)
def test_two_builds_of_a_commit_are_equal(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("VERSION", VERSION)
    first = content_of(tmp_path / "first", build_release(VERSION, tmp_path / "first", repository))
    clone = tmp_path / "another folder"
    subprocess.run(["git", "clone", "--quiet", repository, clone], check=True)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PREFIX", "registry.example.com/other")
    previous = os.umask(0o077)
    try:
        second = content_of(tmp_path / "second", build_release(VERSION, tmp_path / "second", clone))
    finally:
        os.umask(previous)
    assert [name for name in first if first[name] != second.get(name)] == []
    assert first.keys() == second.keys()

    steps = (
        "deploy_model",
        "evaluate",
        "evaluate_language_model",
        "export_model",
        "fine_tune_and_deploy",
        "fingerprint_source",
        "import_model",
        "predict",
        "prepare_data",
        "train",
        "train_and_deploy",
        "train_and_export",
        "tune",
        "tune_train_and_export",
    )
    wheel = f"kfp_distributed-{VERSION}-py3-none-any.whl"
    assert {*first} == {
        *(f"component_specs/{name}.yaml" for name in steps),
        f"kfp_distributed-{VERSION}.tar.gz",
        wheel,
        "SHA256SUMS",
        "images.txt",
        "install.yaml",
    }
    assert (
        checksums({name: data for name, data in first.items() if name != "SHA256SUMS"}).encode() == first["SHA256SUMS"]
    )
    images = first["images.txt"].decode()
    assert re.findall(r"^kfp-distributed/([\w-]+):[0-9a-f]{12}$", images, re.MULTILINE)[:2] == ["steps", "evaluate"]
    # Every file has the library of the commit, not the installed one.
    library = next(item for item in yaml.safe_load_all(first["install.yaml"]) if item["kind"] == "ConfigMap")
    assert library["metadata"]["name"] in first["component_specs/train.yaml"].decode()
    packages = {folder.parent.name for folder in ROOT.glob("*/__init__.py")}
    names = subprocess.run(["git", "ls-files"], cwd=repository, check=True, capture_output=True, text=True).stdout
    sources = {name for name in names.split() if name.partition("/")[0] in packages}
    with zipfile.ZipFile(io.BytesIO(first[wheel])) as files:
        assert b"RELEASED" in files.read("kfp_distributed/storage/uri.py")
        metadata = {name for name in files.namelist() if ".dist-info/" in name}
        assert {*files.namelist()} - metadata == {f"kfp_distributed/{name}" for name in sources}
        assert [name for name in metadata if name.endswith("/licenses/LICENSE")]
    with tarfile.open(fileobj=io.BytesIO(first[f"kfp_distributed-{VERSION}.tar.gz"])) as files:
        listed = {member.name.partition("/")[2] for member in files if member.isfile()}
    generated = {name for name in listed if name.startswith("kfp_distributed.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert listed - generated == {*sources, "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}


def test_uncommitted_changes_are_refused(repository, tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", repository, clone], check=True)
    (clone / "new.py").write_text("")
    with pytest.raises(ReleaseError, match=r"uncommitted changes: new\.py"):
        build_release(VERSION, tmp_path / "release", clone)
    assert not (tmp_path / "release").exists()


def content_of(folder: Path, files: list[Path]) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
