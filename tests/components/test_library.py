"""The files of the library, their hash, the archive and the ConfigMap."""

import base64
import hashlib
import io
import re
import subprocess
import sys
import zipfile

import pytest

import kfp_distributed
from kfp_distributed.library import VERSION, archive
from kfp_distributed.library.archive import library_config_map, make_archive, make_small_archive, read_archive
from kfp_distributed.library.content import NAMESPACE, REPLICA_PACKAGES, content_hash, read_library

CONTENT = {"kfp_distributed/b/__init__.py": b"", "kfp_distributed/a.py": "x = 'é'\n".encode()}


def test_hash_covers_paths_sizes_and_contents():
    text = b"kfp_distributed/a.py\x009\0x = '\xc3\xa9'\n" + b"kfp_distributed/b/__init__.py\x000\0"
    assert content_hash(CONTENT) == hashlib.sha256(text).hexdigest()
    others = [{**CONTENT, "kfp_distributed/c.py": b""}, {"kfp_distributed/a.py": CONTENT["kfp_distributed/a.py"]}]
    assert content_hash(CONTENT) not in map(content_hash, others)


def test_archives_of_equal_content_are_equal_in_any_order():
    data = make_archive(CONTENT)
    assert make_archive(dict(reversed(CONTENT.items()))) == data
    assert read_archive(data) == read_archive(make_small_archive(CONTENT)) == CONTENT
    assert {entry.date_time for entry in zipfile.ZipFile(io.BytesIO(data)).infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_import_from_an_archive(tmp_path):
    (tmp_path / "library.zip").write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
    program = "import kfp_distributed.trainers.runtime.job_description as job; print(job.__file__)"
    process = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path / "library.zip")},
        capture_output=True,
        text=True,
        check=False,
    )
    # Without the packages of this environment, which the public functions of kfp_distributed.trainers do not need.
    module = tmp_path / "library.zip/kfp_distributed/trainers/runtime/job_description.py"
    assert process.stdout.strip() == str(module), process.stderr


def test_library_has_the_packages_of_the_steps_and_no_command_line():
    content = read_library()
    assert {path.split("/")[1] for path in content} == {
        *("cluster_api", "components", "library", "processes", "reports", "storage", "trainers")
    }
    assert {"kfp_distributed/library/bootstrap.py", "kfp_distributed/components/train/step.py"} <= {*content}
    assert not [path for path in content if "__pycache__" in path]


def test_hidden_files_and_folders_are_skipped(tmp_path, monkeypatch):
    package = tmp_path / NAMESPACE / "a_package"
    (package / ".ipynb_checkpoints").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / ".ipynb_checkpoints" / "steps-checkpoint.py").write_text("")
    (package / ".#steps.py").symlink_to("nobody@nowhere")
    monkeypatch.setattr(kfp_distributed, "__path__", [str(tmp_path / NAMESPACE)])
    assert read_library(["a_package"]) == {"kfp_distributed/a_package/__init__.py": b""}


def test_missing_package_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"kfp_distributed\.nothing"):
        read_library(["nothing"])


def test_config_map(monkeypatch):
    monkeypatch.setattr(archive, "read_library", lambda: CONTENT)
    hash_ = content_hash(CONTENT)
    assert library_config_map("team-a") == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"kfp-distributed-{VERSION}-{hash_[:12]}",
            "namespace": "team-a",
            "labels": {
                "app.kubernetes.io/name": "kfp-distributed",
                "app.kubernetes.io/component": "library",
                "app.kubernetes.io/managed-by": "kfp-distributed",
                "app.kubernetes.io/version": VERSION,
            },
            "annotations": {"kfp-distributed/content-hash": hash_},
        },
        "immutable": True,
        "binaryData": {"library.zip": base64.b64encode(make_small_archive(CONTENT)).decode()},
    }


def test_config_map_of_the_library_has_a_valid_name_and_size():
    config_map = library_config_map("team-a")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", config_map["metadata"]["name"])
    # The limit of a ConfigMap is 1 MiB of decoded data. A quarter of it is left as a reserve for new code.
    assert len(base64.b64decode(config_map["binaryData"]["library.zip"])) < 0.75 * 2**20
