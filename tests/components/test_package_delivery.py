"""Run each compiled step like KFP's launcher, in a Python in which pip has to install this project first."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from compiled import Run, whole_job
from environments import environment

from kfp_distributed.components import Delivery
from kfp_distributed.library.content import content_hash, read_library
from kfp_distributed.pipelines.specs import write_specs
from kfp_distributed.storage import credentials_from_environment, embedded_object_store, open_store

pytestmark = pytest.mark.takes(72)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory):
    """A separate environment with the packages of the steps, so that pip installs only this project."""
    folder = tmp_path_factory.mktemp("python") / "environment"
    shutil.copytree(environment("steps").parents[1], folder, symlinks=True, copy_function=link_or_copy)
    return folder / "bin" / "python"


def link_or_copy(source: str, target: str) -> None:
    """Create a hard link, which needs no space and no time, or a copy if the folders are on different disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def test_file_is_copied_if_it_cannot_be_linked(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("text")
    link_or_copy(str(tmp_path / "file"), str(tmp_path / "linked"))
    monkeypatch.setattr(os, "link", raise_cross_device)
    link_or_copy(str(tmp_path / "file"), str(tmp_path / "copied"))
    assert (tmp_path / "linked").samefile(tmp_path / "file")
    assert not (tmp_path / "copied").samefile(tmp_path / "file")
    assert (tmp_path / "copied").read_text() == "text"


def raise_cross_device(*_: str) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.fixture(scope="module")
def wheel(clean_python, tmp_path_factory):
    """The wheel of this project."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, files.split("\0")):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    command = [clean_python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(command, check=True)
    (file,) = folder.glob("*.whl")
    return file


def test_every_step_runs_with_a_library_installed_by_pip(clean_python, wheel, tmp_path):
    write_specs(tmp_path / "specs", Delivery.package(str(wheel)))
    run = Run(str(tmp_path))
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_"))}
    outputs = {}
    with embedded_object_store(tmp_path / "object-store") as store:
        for bucket in ("checkpoints", "models"):
            open_store(f"s3://{bucket}", store.credentials()).make_bucket()
        path = f"{clean_python.parent}:/usr/bin:/bin"
        variables = {"PATH": path, "HOME": str(tmp_path), **pip, **store.environment()}
        for step, command in whole_job(run, specs=tmp_path / "specs").items():
            (tmp_path / step).mkdir()
            process = subprocess.run(
                command, env=variables, cwd=tmp_path / step, capture_output=True, text=True, check=False
            )
            assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
            text = run.output_file(step).read_text(encoding="utf-8")
            outputs[step] = json.loads(text).get("parameterValues", {})
            for secret in (store.access_key, store.secret_key):
                assert secret not in process.stdout + process.stderr + text
        exported = open_store("s3://models/digits", credentials_from_environment(store.environment()))
        keys = [entry.key for entry in exported.list()]
        manifest = json.loads(exported.read("1/export.json"))
    assert outputs["evaluate"]["score"] > 0.9
    assert outputs["export_model"] == {"uri": "s3://models/digits/1", "version": 1}
    assert "1/saved_model.pb" in keys
    assert manifest["source_run"] == run.run_id
    # The wheel contains all files of the hash.
    program = "from kfp_distributed.library.content import *; print(content_hash(read_library()))"
    installed = subprocess.run([clean_python, "-c", program], capture_output=True, text=True, check=True)
    assert installed.stdout.strip() == content_hash(read_library())
