"""Run each compiled step like KFP's launcher, in a Python in which pip has to install this project first."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from backend import Backend
from click.testing import CliRunner
from environments import environment
from kserve_api import KServeApi

from kfp_distributed.cli.main import main
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


@pytest.fixture(scope="module")
def backend(clean_python, tmp_path_factory):
    """A fresh installation of Kubeflow Pipelines."""
    folder = tmp_path_factory.mktemp("backend")
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_"))}
    variables = {"PATH": f"{clean_python.parent}:/usr/bin:/bin", "HOME": str(folder), **pip}
    with embedded_object_store(folder / "object-store") as store:
        yield Backend(store, folder / "disks", {**variables, **store.environment()})


@pytest.fixture(scope="module")
def specs(wheel, tmp_path_factory):
    """The compiled pipelines."""
    folder = tmp_path_factory.mktemp("specs")
    write_specs(folder, Delivery.package(str(wheel)))
    return folder


SHORT = {"train_parameters": {"epochs": "8.0"}, "distribution_specification": {"distribution_type": "Job"}}
"""A training in one process. All other inputs have their defaults, as those about the bucket."""


@pytest.fixture(scope="module")
def exported(backend, specs):
    """Outputs of the tasks of train_and_export."""
    return backend.run(specs / "train_and_export.yaml", **SHORT)


def test_every_step_runs_with_a_library_installed_by_pip(clean_python, backend, exported):
    for secret in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert backend.environment[secret] not in "".join(backend.logs.values()) + str(exported)
    assert exported["evaluate"]["score"] > 0.9
    # The wheel contains all files of the hash.
    program = "from kfp_distributed.library.content import *; print(content_hash(read_library()))"
    installed = subprocess.run([clean_python, "-c", program], capture_output=True, text=True, check=True)
    assert installed.stdout.strip() == content_hash(read_library())


def test_train_and_export_needs_no_bucket_but_that_of_a_fresh_installation(backend, exported):
    credentials = credentials_from_environment(backend.environment)
    uri = exported["export-model"]["uri"]
    assert (uri, exported["export-model"]["version"]) == ("minio://mlpipeline/models/digits/1", 1)
    version = open_store(uri, credentials)
    assert version.exists("saved_model.pb")
    assert f"/{json.loads(version.read('export.json'))['source_run']}/" in exported["export-model"]["manifest"]
    root = open_store("s3://mlpipeline", credentials)
    assert {*root.children()} == {"models/", "v2/"}
    models = CliRunner().invoke(main, ["models", "list", "minio://mlpipeline/models"], env=backend.environment)
    assert models.output.splitlines()[1].split() == ["digits", "1", "1"]


def test_train_and_deploy_needs_no_bucket_but_that_of_a_fresh_installation(backend, specs, exported, tmp_path):
    with KServeApi(backend.bucket) as api:
        backend.environment["KUBECONFIG"] = api.write_configuration(tmp_path / "kubeconfig")
        deployed = backend.run(specs / "train_and_deploy.yaml", **SHORT)
        address = api.objects["inferenceservices/digits"]["spec"]["predictor"]["model"]["storageUri"]
    assert deployed.pop("deploy-model")["version"] == 1
    assert address.startswith("s3://mlpipeline/models/.served/digits-")
    assert deployed == exported  # From the cache.
